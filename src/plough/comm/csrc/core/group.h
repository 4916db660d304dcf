// The ranks of one host: they arrive together, and move data between each other's buffers.
//
// Everything is made of rounds. In a round each rank offers some pieces of memory and takes, from the
// pieces of the others, what it needs: copied, or folded into one result. How bytes get across is decided
// here alone: small offers through the shared slots, large ones straight from buffer to buffer where the
// kernel allows it, and through the slots, window by window, where it does not.
//
// Knows nothing of other hosts (hosts.h) nor of threads that call it: one call at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "errors.h"
#include "peers.h"
#include "pool.h"
#include "segment.h"
#include "types.h"
#include "waiting.h"

namespace plough {

// Copy `to.bytes` bytes from `offset` of a piece of a peer (its index on this host).
struct Take {
  int peer;
  int piece;
  size_t offset;
  Span to;
  bool whole = true;  // the piece must end where the span does
};

// Reduce the same piece of every rank, in the order of the ranks, into `to`.
struct Fold {
  int piece;
  void* to;
  size_t count;
  DType dtype;
  RedOp op;
  double divisor = 1.0;
};

struct Tuning {
  Patience patience{std::chrono::microseconds(50), std::chrono::milliseconds(1)};
  size_t one_shot_bytes = 16 << 10;  // up to here through the slots in one step
  size_t chunk_bytes = 256 << 10;    // moved at once between buffers; twice this should fit a core's cache
  int workers = 1;                   // threads that move large messages
  std::vector<int> worker_cpus;      // where they are bound, if anywhere
};

class Group {
 public:
  // `index`: ours among the ranks of this host; `rank`: ours in the whole group.
  Group(std::shared_ptr<Segment> segment, int index, int rank, const std::string& host, Reach reach,
        const Tuning& tuning);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Once every rank of the host has made its Group: find the others. Throws PeerLost, TimedOut. names: what
  // to call who has not come, by index.
  void meet(Deadline deadline, const std::vector<std::string>& names = {});

  // Whether every rank wants, and is allowed, to read the buffers of every other: one answer for all.
  // Collective, within meet()'s deadline.
  bool can_reach_all(bool wanted);
  void set_reach(Reach reach) { reach_ = reach; }
  Reach reach() const { return reach_; }

  // Say that we are gone: peers that wait for us from now on need not wait for the timeout.
  void leave() { me().presence.store(static_cast<uint32_t>(Presence::left), std::memory_order_release); }

  int size() const { return size_; }
  int index() const { return index_; }
  bool leads() const { return index_ == 0; }
  Segment& segment() { return *segment_; }
  const Tuning& tuning() const { return tuning_; }

  // Every collective begins and ends with these; between them come its rounds. begin() throws Broken when
  // the group has failed before.
  void begin(Op op, uint64_t seq, Deadline deadline, std::chrono::milliseconds timeout);
  void check_usable();
  void end(bool finished = true);

  // One round. `call` is what must agree; its bytes, addresses and number of pieces are filled in here. A
  // piece without an address offers nothing but its size, to be compared.
  void round(Call call, const std::vector<ConstSpan>& pieces, const std::vector<Take>& takes,
             const Fold* fold = nullptr);

  // Everybody's result in everybody's `out`, which may be `in`. Same bits on every rank.
  void allreduce(Call call, const void* in, void* out, size_t count, DType dtype, RedOp op, double divisor);

  // The result in `out` at the rank with index `root`; `out` of the others is not touched.
  void reduce(Call call, int root, const void* in, void* out, size_t count, DType dtype, RedOp op,
              double divisor);

  // We wait for other hosts: the ranks of our own shall not blame us too early.
  void linking(bool on) { me().linking.store(on, std::memory_order_release); }

  // Make the failure known to all ranks of the host and throw it; the first failure wins.
  [[noreturn]] void fail(Failure kind, const std::string& text);
  bool failed() const { return segment_->header().failed.load(std::memory_order_acquire) != 0; }
  [[noreturn]] void throw_failure();

  // "rank 3 (pid 4242 on host n1)", and what it was last seen doing.
  std::string who(int index);
  std::string doing(int index);
  // The same, and whom it waits for, and so on.
  std::string trail(int index);
  // "; rank 3 (...) died" or "is stopped by a signal", of all on this host, or nothing.
  std::string trouble_here();
  bool alive(int index) const { return watches_[index] == nullptr || watches_[index]->alive(); }
  bool stopped(int index) const { return watches_[index] != nullptr && watches_[index]->stopped(); }
  bool has_left(int index);
  // For whom our oldest message waits, for the others to tell; -1: there is none.
  void mail_waits_for(int peer) { me().mail_peer.store(peer + 1, std::memory_order_relaxed); }
  int pid(int index) { return segment_->state(index).pid.load(std::memory_order_relaxed); }

  Deadline deadline() const { return deadline_; }

  // "all_reduce #17": the collective we are in.
  std::string current() const;

 private:
  RankState& me() { return segment_->state(index_); }
  const Call& call_of(int peer) const { return segment_->cell(peer, tick_).call; }

  void arrive(const Call& call);
  void arrive();
  void wait_all();
  void compare_calls();
  bool arrived(int peer);
  void check(int peer);
  uint32_t tick_of(int peer);
  int waits_for(int peer);
  void blame_late();

  void read(int peer, void* to, uint64_t from, size_t bytes);
  void write(int peer, uint64_t to, const void* from, size_t bytes);
  [[noreturn]] void fail_to_reach(int peer, const Error& error);
  void close_buffers();

  size_t one_shot_limit() const;
  bool fits_one_shot() const;
  void offer(Call& call, const std::vector<ConstSpan>& pieces);
  ConstSpan piece_of(int peer, int piece) const;
  void expect(const Take& take, size_t offered);
  void fold_chunk(const Fold& fold, size_t offset, size_t count, const void* const* sources);
  void through_slots_once(const std::vector<ConstSpan>& own, const std::vector<Take>& takes, const Fold* fold);
  void through_windows(const std::vector<ConstSpan>& own, const std::vector<Take>& takes, const Fold* fold);
  void from_buffers(const std::vector<ConstSpan>& own, const std::vector<Take>& takes, const Fold* fold);
  void shards_to_buffers(const Fold& whole, const void* in, int only);
  void shards_through_slots(const Fold& whole, const void* in, const Call& call);

  std::shared_ptr<Segment> segment_;
  const int index_, size_;
  Reach reach_;
  Tuning tuning_;
  std::unique_ptr<Pool> pool_;
  std::vector<std::unique_ptr<Watch>> watches_;
  uint32_t tick_ = 0;
  Op op_ = Op::none;
  uint64_t seq_ = 0;
  Deadline deadline_;
  std::chrono::milliseconds timeout_{0};
};

}  // namespace plough
