#!/bin/sh
# compiler.sh - names clang where it has libFuzzer and compiles the library, else the C compiler.
here=$(dirname "$0")
try=$(mktemp -d) || exit 1
trap 'rm -rf "$try"' EXIT
cat > "$try/target.c" <<'END'
#include <stddef.h>
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    return data && size ? 0 : 0;
}
END
if clang -fsanitize=fuzzer,address,undefined "$try/target.c" -o "$try/target" 2>/dev/null &&
    clang -std=gnu11 -I"$here/../../include" -I"$here/../../src" -c "$here/../../src/cpu/isa.c" \
        -o "$try/isa.o" 2>/dev/null; then
    echo clang
else
    echo "${CC:-cc}"
fi
