/* run_package.cpp - runs a model of octet layers from a package of AOTInductor, without Python.
 *
 *     run_package liboctet_torch.so MODEL.pt2 INPUT OUTPUT ROWS COLUMNS
 *
 * INPUT is ROWS x COLUMNS float32 numbers, one after the other; so is OUTPUT. The package comes
 * from torch.export and torch._inductor.aoti_compile_and_package. Its layers are calls of
 * octet::linear: the ops have to be registered before it is loaded, by one function of
 * liboctet_torch.so, which `make lib` builds. */
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

static void register_ops(const char *plugin) {
    void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw std::runtime_error(std::string(dlerror()) + "; make lib builds it");
    }
    using Register = const char *(*)(const char *);
    auto call = reinterpret_cast<Register>(dlsym(library, "octet_torch_register"));
    const char *problem = call ? call("libtorch_cpu.so") : "it has no octet_torch_register";
    if (problem != nullptr) {
        throw std::runtime_error(std::string(plugin) + ": " + problem);
    }
}

static std::vector<float> read_numbers(const char *path, size_t count) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file || static_cast<size_t>(file.tellg()) != count * sizeof(float)) {
        throw std::runtime_error(std::string(path) + " is not there, or not " +
                                 std::to_string(count) + " numbers");
    }
    std::vector<float> numbers(count);
    file.seekg(0);
    file.read(reinterpret_cast<char *>(numbers.data()),
              static_cast<std::streamsize>(count * sizeof(float)));
    return numbers;
}

/* Written beside its place and moved there: whole, or not at all. */
static void write_numbers(const std::string &path, const at::Tensor &y) {
    at::Tensor dense = y.to(at::kCPU, at::kFloat).contiguous();
    std::string beside = path + ".part";
    std::ofstream file(beside, std::ios::binary);
    file.write(static_cast<const char *>(dense.data_ptr()),
               static_cast<std::streamsize>(dense.numel() * sizeof(float)));
    file.close();
    if (!file || std::rename(beside.c_str(), path.c_str()) != 0) {
        std::remove(beside.c_str());
        throw std::runtime_error(path + " cannot be written");
    }
}

static int64_t size_of(const char *word) {
    char *end = nullptr;
    long long size = std::strtoll(word, &end, 10);
    if (*end != 0 || size < 1 || size > (1 << 20)) {
        throw std::runtime_error(std::string(word) + " is no number of rows or columns");
    }
    return size;
}

int main(int count, char **words) {
    if (count != 7) {
        std::fprintf(stderr, "usage: run_package PLUGIN MODEL INPUT OUTPUT ROWS COLUMNS\n");
        return 2;
    }
    try {
        int64_t rows = size_of(words[5]), columns = size_of(words[6]);
        std::vector<float> numbers = read_numbers(words[3], size_t(rows) * size_t(columns));
        register_ops(words[1]);
        torch::inductor::AOTIModelPackageLoader model(words[2]);
        at::Tensor x = at::from_blob(numbers.data(), {rows, columns}, at::kFloat);
        write_numbers(words[4], model.run({x}).at(0));
    } catch (const std::exception &problem) {
        std::fprintf(stderr, "run_package: %s\n", problem.what());
        return 1;
    }
    return 0;
}
