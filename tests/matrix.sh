#!/usr/bin/env bash
# matrix.sh - the C tests by every compiler, build type and machine that is here: a line each.
#
#     tests/matrix.sh [JOBS]        tests/matrix.sh JOBS gcc-debug aarch64
#     UNITS="core format" tests/matrix.sh 2 clang-19-debug       these folders of tests alone
#
# A clang that has a number, clang-14 say, has rows of its own.
set -uo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-2}
wanted=("${@:2}")
units=${UNITS:-}
failed=0

# Which targets are built, and which tests run: all but the long ones, or those of $UNITS.
targets=()
selection=(-LE '^long$')
if [ -n "$units" ]; then
    targets=(--target)
    for unit in $units; do
        targets+=("tests_$unit")
    done
    selection+=(-R "^(${units// /|})/")
fi

# $1 name, $2 program that must be there, $3 what to install, then cmake's flags.
row() {
    local name=$1 needs=$2 install=$3 place="build-matrix/$1"
    shift 3
    if [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $name "* ]]; then
        return
    fi
    if ! command -v "$needs" >/dev/null; then
        echo "$name: skipped, there is no $needs: apt-get install $install"
        return
    fi
    mkdir -p "$place"
    if cmake -S . -B "$place" -DOCTET_PYTHON=OFF "$@" >"$place/log" 2>&1 &&
        cmake --build "$place" "${targets[@]}" -j "$jobs" >>"$place/log" 2>&1 &&
        (cd "$place" && ctest -j "$jobs" "${selection[@]}" --output-on-failure) \
            >>"$place/log" 2>&1; then
        echo "$name: $(grep 'tests passed' "$place/log")"
    else
        echo "$name: FAILED, see $place/log"
        failed=1
    fi
}

# $1 the compiler's name in rows, $2 the C compiler, $3 the C++ compiler, $4 "all": sanitizers, too.
compiler() {
    local flags=(-DCMAKE_C_COMPILER="$2" -DCMAKE_CXX_COMPILER="$3")
    row "$1-release" "$2" "$1" "${flags[@]}" -DOCTET_WERROR=ON
    row "$1-debug" "$2" "$1" "${flags[@]}" -DCMAKE_BUILD_TYPE=Debug -DOCTET_WERROR=ON
    if [ "${4:-}" = all ]; then
        row "$1-sanitize" "$2" "$1" "${flags[@]}" -DOCTET_SANITIZE=address,undefined
        row "$1-thread" "$2" "$1" "${flags[@]}" -DOCTET_SANITIZE=thread
    fi
}

compiler gcc gcc g++ all
compiler clang clang clang++ all
for version in 14 15 16 17 18 19 20 21; do
    if command -v "clang-$version" >/dev/null; then
        compiler "clang-$version" "clang-$version" "clang++-$version"
    fi
done

# x86 with pointers of 32 bits: no CUDA, no torch, no C++. Its headers lie with those of 64 bits,
# where the package gcc-multilib is not: Debian has it or the compiler for aarch64.
if echo 'int main(void) { return 0; }' | gcc -m32 -x c - -o /dev/null 2>/dev/null; then
    row x86-32 gcc gcc -DCMAKE_C_COMPILER=gcc -DOCTET_WERROR=ON -DCMAKE_CXX_COMPILER=NOTFOUND \
        "-DCMAKE_C_FLAGS=-m32 -idirafter /usr/include/$(gcc -print-multiarch)"
else
    row x86-32 gcc-m32 "gcc-$(gcc -dumpversion)-multilib"
fi

# The compiler for the other machine, and what runs its programs here; C alone, so no emulated GPU.
if command -v aarch64-linux-gnu-gcc >/dev/null; then
    row aarch64 qemu-aarch64 qemu-user -DCMAKE_SYSTEM_NAME=Linux \
        -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
        -DCMAKE_CXX_COMPILER=NOTFOUND -DCMAKE_EXE_LINKER_FLAGS=-static \
        "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64"
else
    row aarch64 aarch64-linux-gnu-gcc 'gcc-aarch64-linux-gnu qemu-user'
fi
exit $failed
