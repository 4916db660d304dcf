// Between torch's tensors and the core's spans: types, strides, operations.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "../core/collectives.h"

namespace plough {

// The element type as the core knows it; types it cannot reduce travel as bytes.
DType dtype_of(const at::Tensor& tensor);

// What is to be reduced and how. Throws (ValueError in Python) where the core cannot.
Reduction reduction_of(const at::Tensor& tensor, const c10d::ReduceOp& op);

// A dense CPU tensor, or a ValueError that names the collective.
void check_tensor(const at::Tensor& tensor, const char* op);

inline ConstSpan read_span(const at::Tensor& tensor) { return {tensor.const_data_ptr(), tensor.nbytes()}; }
inline Span write_span(const at::Tensor& tensor) { return {tensor.data_ptr(), tensor.nbytes()}; }

// A tensor that a collective fills: itself where its memory is in one piece, else a dense stand-in.
class Filled {
 public:
  // `read`: the collective reads what is in it first.
  Filled(const at::Tensor& tensor, bool read) : tensor_(tensor), dense_(tensor) {
    if (tensor.is_contiguous()) return;
    dense_ = read ? tensor.contiguous() : at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  }

  const at::Tensor& dense() const { return dense_; }
  Span span() const { return write_span(dense_); }
  void give_back() const {
    if (!dense_.is_same(tensor_)) at::Tensor(tensor_).copy_(dense_);
  }

 private:
  at::Tensor tensor_, dense_;
};

}  // namespace plough
