// The link between hosts over another c10d backend that can send and receive, which is gloo.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "../core/link.h"

namespace plough {

class GlooLink : public Link {
 public:
  // inner: a backend whose ranks are the leaders, in the order of the hosts. leaders: what to call them.
  GlooLink(c10::intrusive_ptr<c10d::Backend> inner, std::vector<std::string> leaders)
      : inner_(std::move(inner)), leaders_(std::move(leaders)) {}

  void exchange(const std::string& what, const std::vector<ConstSpan>& sends, const std::vector<Span>& recvs,
                Deadline deadline) override;
  void abandon() override { inner_.reset(); }  // closes its connections
  const char* name() const override { return "gloo"; }

 private:
  c10::intrusive_ptr<c10d::Backend> inner_;
  std::vector<std::string> leaders_;
};

}  // namespace plough
