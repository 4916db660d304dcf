// A link between hosts that are in one process: leaders meet in a hub, which is strict about what they say.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "errors.h"
#include "link.h"

namespace plough {

class Hub {
 public:
  explicit Hub(int hosts) : hosts_(hosts) {}

  void exchange(int host, uint64_t turn, const std::string& what, const std::vector<ConstSpan>& sends,
                const std::vector<Span>& recvs, Deadline deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    Meeting& meeting = meetings_[turn];
    Said& own = meeting.said[host];
    own.what = what;
    for (const ConstSpan& span : sends) {
      const char* data = static_cast<const char*>(span.data);
      own.sent.emplace_back(data, data + span.bytes);
    }
    changed_.notify_all();
    while (static_cast<int>(meeting.said.size()) < hosts_) {
      for (int other : gone_)
        if (meeting.said.count(other) == 0) throw PeerLost("host " + std::to_string(other) + " is gone");
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && Clock::now() > deadline)
        throw TimedOut(what.substr(0, what.find(',')) + " timed out: host " +
                       std::to_string(absent(meeting)) + " did not come");
    }
    for (const auto& [other, said] : meeting.said) {
      if (other == host) continue;
      if (said.what != what) throw Mismatch("hosts called different things: " + what + "; " + said.what);
      const std::vector<char>& bytes = said.sent[static_cast<size_t>(host)];
      const Span& to = recvs[static_cast<size_t>(other)];
      if (bytes.size() != to.bytes)
        throw Mismatch("sizes differ between hosts: " + std::to_string(bytes.size()) + " bytes come, " +
                       std::to_string(to.bytes) + " are expected in " + what);
      if (!bytes.empty()) std::copy(bytes.begin(), bytes.end(), static_cast<char*>(to.data));
    }
    if (++meeting.finished == hosts_) meetings_.erase(turn);
  }

  void leave(int host) {
    std::lock_guard<std::mutex> lock(mutex_);
    gone_.insert(host);
    changed_.notify_all();
  }

 private:
  struct Said {
    std::string what;
    std::vector<std::vector<char>> sent;
  };
  struct Meeting {
    std::map<int, Said> said;  // by host
    int finished = 0;
  };

  int absent(const Meeting& meeting) const {
    int host = 0;
    while (meeting.said.count(host) != 0) host++;
    return host;
  }

  const int hosts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Meeting> meetings_;  // by turn
  std::set<int> gone_;
};

class MemoryLink : public Link {
 public:
  MemoryLink(std::shared_ptr<Hub> hub, int host) : hub_(std::move(hub)), host_(host) {}
  ~MemoryLink() override { hub_->leave(host_); }

  void exchange(const std::string& what, const std::vector<ConstSpan>& sends, const std::vector<Span>& recvs,
                Deadline deadline) override {
    hub_->exchange(host_, turn_++, what, sends, recvs, deadline);
  }
  const char* name() const override { return "memory"; }

 private:
  std::shared_ptr<Hub> hub_;
  const int host_;
  uint64_t turn_ = 0;
};

}  // namespace plough
