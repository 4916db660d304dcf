#include "gloo_link.h"

#include <cstring>

#include "../core/errors.h"

namespace plough {
namespace {

constexpr size_t kLabelBytes = 192;
constexpr int kLabelTag = 1, kDataTag = 2;

at::Tensor bytes_at(const void* data, size_t bytes) {
  return at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace

// A label goes ahead of the data on the same connection, so it costs no round trip; only when the labels
// agree is the data received.
void GlooLink::exchange(const std::string& what, const std::vector<ConstSpan>& sends, const std::vector<Span>& recvs,
                        Deadline deadline) {
  using Pending = std::pair<size_t, c10::intrusive_ptr<c10d::Work>>;
  std::vector<char> label(kLabelBytes), labels(kLabelBytes * sends.size());
  std::strncpy(label.data(), what.c_str(), kLabelBytes - 1);
  std::vector<Pending> sent, heard, received;
  const auto post = [&](bool send, size_t host, const void* data, size_t bytes, int tag) -> Pending {
    std::vector<at::Tensor> tensors{bytes_at(data, bytes)};
    const auto rank = static_cast<int>(host);
    try {
      return {host, send ? inner_->send(tensors, rank, tag) : inner_->recv(tensors, rank, tag)};
    } catch (const std::exception& error) {
      throw PeerLost("cannot reach " + leaders_[host] + ": " + std::string(error.what()).substr(0, 200));
    }
  };
  const auto finish = [&](const Pending& pending) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    try {
      pending.second->wait(std::max(left, std::chrono::milliseconds(1)));
    } catch (const std::exception& error) {
      if (Clock::now() >= deadline)
        throw TimedOut(what.substr(0, what.find(',')) + " timed out: " + leaders_[pending.first] + " did not come");
      const std::string text = error.what();
      throw PeerLost("lost the connection to " + leaders_[pending.first] + ": " + text.substr(0, text.find('\n')));
    }
  };
  for (size_t host = 0; host < sends.size(); host++) {
    if (recvs[host].bytes > 0) heard.push_back(post(false, host, &labels[host * kLabelBytes], kLabelBytes, kLabelTag));
    if (sends[host].bytes == 0) continue;
    sent.push_back(post(true, host, label.data(), kLabelBytes, kLabelTag));
    sent.push_back(post(true, host, sends[host].data, sends[host].bytes, kDataTag));
  }
  for (const Pending& pending : heard) {
    finish(pending);
    const size_t host = pending.first;
    const char* theirs = &labels[host * kLabelBytes];
    if (std::strncmp(theirs, label.data(), kLabelBytes) != 0)
      throw Mismatch("hosts called different things: here " + what + "; " + leaders_[host] + ": " +
                     std::string(theirs, strnlen(theirs, kLabelBytes)));
    received.push_back(post(false, host, recvs[host].data, recvs[host].bytes, kDataTag));
  }
  for (const Pending& pending : received) finish(pending);
  for (const Pending& pending : sent) finish(pending);
}

}  // namespace plough
