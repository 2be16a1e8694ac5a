// Parts that all emulated products share: numbers by their cudaDataType, and work in a stream's order.
#pragma once
#include <functional>

extern "C" unsigned long long emu_gemms, emu_bytes_gemm;

namespace emu {
bool counting();
void log(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Does `product`, or records it where `stream` is being captured.
void multiply(void* stream, std::function<void()> product);
const char* name(int type);
long long width(int type);  // bytes of a number
double load(const void* p, long long i, int type);
void store(void* p, long long i, int type, double value);  // rounded to nearest, ties to even
}  // namespace emu
