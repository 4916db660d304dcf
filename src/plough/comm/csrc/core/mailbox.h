// Point to point between the ranks of one host: send and receive, matched by rank and tag.
//
// A message is posted where its receiver finds it; small ones carry their bytes with them, large ones are
// read by the receiver straight from the sender's buffer, or streamed through the channel where the kernel
// does not allow that. Nothing here blocks: progress() does what can be done and comes back.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "group.h"

namespace plough {

// One send or receive. Its buffer must stay until done() was called.
struct Letter {
  bool sending = false;
  int peer = -1;  // index on this host; -1 receives from any
  int tag = 0;
  void* data = nullptr;
  size_t bytes = 0;
  uint64_t seq = 0;
  std::chrono::milliseconds timeout{0};
  Deadline deadline;
  std::function<void(Letter&, std::exception_ptr)> done;  // called once, without any lock held

  // filled in as it goes
  int slot = -1;
  int from = -1;  // who sent it
  size_t moved = 0;
};

class Mailbox {
 public:
  explicit Mailbox(Group& group);

  void post(std::shared_ptr<Letter> letter);

  // Do what can be done. Returns whether anything moved. Letters that are finished, late or lost are done().
  bool progress();

  bool idle();

  // Wait until somebody rings, `until` says so, or a moment has passed.
  void wait_for_ring(const Patience& patience, const std::function<bool()>& until);

  // Make whoever sleeps in wait_for_ring look again.
  void wake();

  // Finish everything with an error: the group has failed or is being taken down.
  void fail_all(std::exception_ptr error);

 private:
  struct Arrived {
    uint32_t slot;
    int tag;
    uint64_t bytes;
    uint64_t address;
    bool eager;
  };
  struct Finished {
    std::shared_ptr<Letter> letter;
    std::exception_ptr error;
  };

  bool push_sends(int peer, std::vector<Finished>& finished);
  bool feed_stage(int peer);
  bool take_arrivals(int peer);
  bool match(int peer, std::vector<Finished>& finished);
  void deliver(int peer, const Arrived& arrived, Letter& letter);
  bool drain_stage(int peer, std::vector<Finished>& finished);
  bool has_news(const Letter& letter, int peer);
  void look_for_trouble(std::vector<Finished>& finished);
  void give_up(std::exception_ptr error, std::vector<Finished>& finished);
  void ring(int peer);
  std::string describe(const Letter& letter);

  Group& group_;
  const int index_, size_;
  std::mutex mutex_;
  struct Lane {
    std::deque<std::shared_ptr<Letter>> unposted;
    std::vector<std::shared_ptr<Letter>> posted;  // by message slot
    std::vector<Arrived> arrived;                 // in the order of sending, not yet matched
    std::shared_ptr<Letter> streaming;            // being received through the stage
    uint32_t streaming_slot = 0;
  };
  std::vector<Lane> lanes_;                      // per peer
  std::list<std::shared_ptr<Letter>> expected_;  // receives, in the order of posting
  Clock::time_point looked_{};
};

}  // namespace plough
