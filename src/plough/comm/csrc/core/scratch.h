// Memory a collective needs for a while, that is not given back when the collective fails.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <utility>

namespace plough {

// After a failure another rank that was stopped half-way, or a network library, may still write to what it
// was told of. The group is lost then, and so are these bytes, until the process ends.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(size_t bytes) : data_(bytes > 0 ? new char[bytes] : nullptr), bytes_(bytes) {}
  Scratch(Scratch&& other) noexcept
      : data_(std::move(other.data_)), bytes_(std::exchange(other.bytes_, 0)), before_(other.before_) {}
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Scratch() {
    if (std::uncaught_exceptions() > before_) data_.release();
  }

  char* data() const { return data_.get(); }
  size_t size() const { return bytes_; }

 private:
  std::unique_ptr<char[]> data_;
  size_t bytes_ = 0;
  int before_ = std::uncaught_exceptions();
};

}  // namespace plough
