// A link that lives in a library of its own, loaded by path: oneCCL, which not everybody has.
#pragma once

#include <string>
#include <vector>

#include "link.h"

namespace plough {

class PluginLink : public Link {
 public:
  // path: the library, with the C interface of oneccl/oneccl_link.h. handle: what its open() gave.
  // leaders: what to call the ranks at the other ends. Throws Error when the library cannot be loaded.
  PluginLink(const std::string& path, void* handle, std::vector<std::string> leaders);

  void exchange(const std::string& what, const std::vector<ConstSpan>& sends, const std::vector<Span>& recvs,
                Deadline deadline) override;
  const char* name() const override { return "oneccl"; }

 private:
  using Exchange = int (*)(void*, const void* const*, const size_t*, void* const*, const size_t*, double, char*,
                           size_t);

  void move(const std::vector<ConstSpan>& sends, const std::vector<Span>& recvs, Deadline deadline,
            const std::string& what);

  Exchange exchange_;
  void* handle_;
  std::vector<std::string> leaders_;
};

}  // namespace plough
