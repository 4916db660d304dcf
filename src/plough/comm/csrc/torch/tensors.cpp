#include "tensors.h"

#include "../core/reduce.h"

namespace plough {

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kByte:
      return DType::u8;
    case at::kChar:
      return DType::i8;
    case at::kShort:
      return DType::i16;
    case at::kInt:
      return DType::i32;
    case at::kLong:
      return DType::i64;
    case at::kUInt16:
      return DType::u16;
    case at::kUInt32:
      return DType::u32;
    case at::kUInt64:
      return DType::u64;
    case at::kHalf:
    case at::kComplexHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    case at::kFloat:
    case at::kComplexFloat:
      return DType::f32;
    case at::kDouble:
    case at::kComplexDouble:
      return DType::f64;
    case at::kBool:
      return DType::boolean;
    default:
      return DType::u8;
  }
}

Reduction reduction_of(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  Reduction how;
  how.dtype = dtype_of(tensor);
  const auto kind = static_cast<c10d::ReduceOp::RedOpType>(op);
  TORCH_CHECK_VALUE(kind <= c10d::ReduceOp::PREMUL_SUM, "ccl: unknown reduction");
  how.op = static_cast<RedOp>(kind);
  const bool known = how.dtype != DType::u8 || tensor.scalar_type() == at::kByte;
  TORCH_CHECK_TYPE(known, "ccl cannot reduce ", tensor.scalar_type(), "; cast the tensor first");
  // A complex sum is the sum of its parts; a product or a maximum is not.
  TORCH_CHECK_VALUE(!tensor.is_complex() || c10d::isComplexViewAsRealAllowed(op), "ccl cannot reduce complex numbers with ",
                    name_of(how.op));
  try {
    check_reducible(how.dtype, how.op);
  } catch (const Unsupported& error) {
    TORCH_CHECK_VALUE(false, "ccl: ", error.what());
  }
  if (how.op == RedOp::premul_sum) {
    const auto* supplement = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK_VALUE(supplement != nullptr, "ccl: PREMUL_SUM without its factor");
    how.scale = supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
  }
  return how;
}

void check_tensor(const at::Tensor& tensor, const char* op) {
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), op, ": ccl moves CPU tensors, and this one is on ", tensor.device(),
                    "; use backend \"cpu:ccl,cuda:nccl\" for both");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, op, ": ccl moves dense tensors, and this one is ", tensor.layout());
}

}  // namespace plough
