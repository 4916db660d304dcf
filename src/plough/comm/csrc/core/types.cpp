// Names of element types and operations, as messages show them.
#include "types.h"

namespace plough {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return "uint8";
    case DType::i8:
      return "int8";
    case DType::i16:
      return "int16";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::u16:
      return "uint16";
    case DType::u32:
      return "uint32";
    case DType::u64:
      return "uint64";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    case DType::boolean:
      return "bool";
  }
  return "unknown";
}

const char* name_of(RedOp op) {
  switch (op) {
    case RedOp::sum:
      return "sum";
    case RedOp::avg:
      return "avg";
    case RedOp::product:
      return "product";
    case RedOp::min:
      return "min";
    case RedOp::max:
      return "max";
    case RedOp::band:
      return "band";
    case RedOp::bor:
      return "bor";
    case RedOp::bxor:
      return "bxor";
    case RedOp::premul_sum:
      return "premul_sum";
  }
  return "unknown";
}

}  // namespace plough
