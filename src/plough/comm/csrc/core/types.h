// What a collective is made of: element types, reduction operations, spans of memory, deadlines.
//
// Ground floor of the core. Must not know torch, sockets or shared memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace plough {

enum class DType : uint8_t { u8, i8, i16, i32, i64, u16, u32, u64, f16, bf16, f32, f64, boolean };

enum class RedOp : uint8_t { sum, avg, product, min, max, band, bor, bxor, premul_sum };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::u8:
    case DType::i8:
    case DType::boolean:
      return 1;
    case DType::i16:
    case DType::u16:
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::i32:
    case DType::u32:
    case DType::f32:
      return 4;
    case DType::i64:
    case DType::u64:
    case DType::f64:
      return 8;
  }
  return 0;
}

const char* name_of(DType dtype);
const char* name_of(RedOp op);

// Bytes to read, bytes to write. An empty span may have any address.
struct ConstSpan {
  const void* data = nullptr;
  size_t bytes = 0;
};

struct Span {
  void* data = nullptr;
  size_t bytes = 0;
  operator ConstSpan() const { return {data, bytes}; }
};

inline char* at(void* base, size_t offset) { return static_cast<char*>(base) + offset; }
inline const char* at(const void* base, size_t offset) { return static_cast<const char*>(base) + offset; }

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

}  // namespace plough
