#include "plugin_link.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "errors.h"
#include "scratch.h"

namespace plough {
namespace {

constexpr int kTimedOut = 2;         // PLOUGH_ONECCL_TIMED_OUT
constexpr size_t kLabelBytes = 192;  // what a call is for, so that hosts that disagree find out
constexpr size_t kJoined = 64 << 10;

}  // namespace

PluginLink::PluginLink(const std::string& path, void* handle, std::vector<std::string> leaders)
    : handle_(handle), leaders_(std::move(leaders)) {
  // Never unloaded: its threads may be at work until the process ends.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error("cannot load " + path + ": " + dlerror());
  exchange_ = reinterpret_cast<Exchange>(dlsym(library, "plough_oneccl_exchange"));
  if (exchange_ == nullptr) throw Error(path + " is not a link");
}

void PluginLink::move(const std::vector<ConstSpan>& sends, const std::vector<Span>& recvs, Deadline deadline,
                      const std::string& what) {
  std::vector<const void*> from;
  std::vector<void*> to;
  std::vector<size_t> sent, received;
  for (const ConstSpan& span : sends) from.push_back(span.data), sent.push_back(span.bytes);
  for (const Span& span : recvs) to.push_back(span.data), received.push_back(span.bytes);
  const std::chrono::duration<double> left = deadline - Clock::now();
  char error[2048] = "";
  const int status = exchange_(handle_, from.data(), sent.data(), to.data(), received.data(),
                               std::max(left.count(), 0.001), error, sizeof(error));
  if (status == 0) return;
  std::string others;
  for (size_t host = 0; host < leaders_.size(); host++)
    if (sends[host].bytes > 0 || recvs[host].bytes > 0) others += (others.empty() ? "" : ", ") + leaders_[host];
  if (status == kTimedOut)
    throw TimedOut(what.substr(0, what.find(',')) + " timed out: not all of these came: " + others);
  throw PeerLost("oneCCL lost the connection to one of " + others + ": " + error);
}

// The label goes ahead of small data in the same message. Ahead of large data it is a message of its own,
// which costs little beside it; either way nothing is taken from a host that means something else.
void PluginLink::exchange(const std::string& what, const std::vector<ConstSpan>& sends,
                          const std::vector<Span>& recvs, Deadline deadline) {
  const size_t hosts = sends.size();
  std::vector<Scratch> going(hosts), coming(hosts);
  std::vector<ConstSpan> first_sends(hosts), rest_sends(hosts);
  std::vector<Span> first_recvs(hosts), rest_recvs(hosts);
  bool rest = false;
  for (size_t host = 0; host < hosts; host++) {
    const auto joined = [](size_t bytes) { return bytes <= kJoined ? bytes : 0; };
    if (sends[host].bytes > 0) {
      const size_t with = joined(sends[host].bytes);
      going[host] = Scratch(kLabelBytes + with);
      std::memset(going[host].data(), 0, kLabelBytes);
      std::memcpy(going[host].data(), what.data(), std::min(what.size(), kLabelBytes - 1));
      if (with > 0) std::memcpy(going[host].data() + kLabelBytes, sends[host].data, with);
      first_sends[host] = {going[host].data(), going[host].size()};
      if (with == 0) rest_sends[host] = sends[host], rest = true;
    }
    if (recvs[host].bytes > 0) {
      const size_t with = joined(recvs[host].bytes);
      coming[host] = Scratch(kLabelBytes + with);
      first_recvs[host] = {coming[host].data(), coming[host].size()};
      if (with == 0) rest_recvs[host] = recvs[host], rest = true;
    }
  }
  move(first_sends, first_recvs, deadline, what);
  for (size_t host = 0; host < hosts; host++) {
    if (recvs[host].bytes == 0) continue;
    const char* label = coming[host].data();
    const std::string theirs(label, strnlen(label, kLabelBytes));
    if (theirs != what.substr(0, kLabelBytes - 1))
      throw Mismatch("hosts called different things: here " + what + "; " + leaders_[host] + ": " + theirs);
    if (rest_recvs[host].bytes == 0) std::memcpy(recvs[host].data, label + kLabelBytes, recvs[host].bytes);
  }
  if (rest) move(rest_sends, rest_recvs, deadline, what);
}

}  // namespace plough
