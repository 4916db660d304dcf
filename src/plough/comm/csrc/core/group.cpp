#include "group.h"

#include <algorithm>
#include <cstring>

#include "reduce.h"

namespace plough {
namespace {

constexpr auto kLeaderGrace = std::chrono::milliseconds(700);

// Elements of a shard, so that no two ranks write to one cache line.
size_t shard_size(size_t count, int ranks, size_t element) {
  const size_t even = (count + ranks - 1) / ranks;
  return round_up(even * element, kLine) / element;
}

char* thread_scratch(size_t bytes) {
  thread_local std::vector<char> memory;
  if (memory.size() < bytes + kLine) memory.resize(bytes + kLine);
  auto address = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<char*>(round_up(address, kLine));
}

void copy(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, bytes);
}

std::string describe(const Call& call) {
  std::string text = std::string(name_of(call.op)) + " #" + std::to_string(call.seq);
  std::string details;
  const auto add = [&](const std::string& detail) { details += (details.empty() ? "" : ", ") + detail; };
  if (call.op == Op::allreduce || call.op == Op::reduce || call.op == Op::reduce_scatter)
    add(name_of(static_cast<RedOp>(call.redop)));
  if (call.op != Op::barrier) add(std::to_string(call.bytes) + " bytes of " + name_of(static_cast<DType>(call.dtype)));
  if (call.root >= 0) add("root " + std::to_string(call.root));
  return details.empty() ? text : text + " (" + details + ")";
}

}  // namespace

const char* name_of(Op op) {
  static const char* const names[] = {"no collective", "all_reduce", "reduce",         "broadcast",
                                      "all_gather",    "gather",     "scatter",        "reduce_scatter",
                                      "all_to_all",    "barrier",    "send",           "recv"};
  return names[static_cast<size_t>(op)];
}

Group::Group(std::shared_ptr<Segment> segment, int index, int rank, const std::string& host, Reach reach,
             const Tuning& tuning)
    : segment_(std::move(segment)),
      index_(index),
      size_(static_cast<int>(segment_->header().ranks)),
      reach_(reach),
      tuning_(tuning),
      pool_(new Pool(std::max(0, tuning.workers - 1), tuning.worker_cpus)),
      watches_(size_) {
  RankState& state = me();
  state.pid.store(getpid(), std::memory_order_relaxed);
  state.rank.store(rank, std::memory_order_relaxed);
  std::strncpy(state.host, host.c_str(), sizeof(state.host) - 1);
  state.presence.store(static_cast<uint32_t>(Presence::here), std::memory_order_release);
}

Group::~Group() { leave(); }

void Group::meet(Deadline deadline, const std::vector<std::string>& names) {
  deadline_ = deadline;
  for (int peer = 0; peer < size_; peer++) {
    RankState& state = segment_->state(peer);
    while (state.presence.load(std::memory_order_acquire) == static_cast<uint32_t>(Presence::never_came)) {
      if (Clock::now() > deadline)
        fail(Failure::timed_out, (names.empty() ? "the rank with local index " + std::to_string(peer) : names[peer]) +
                                     " did not come to form the group");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    const int pid = state.pid.load(std::memory_order_relaxed);
    if (pid != getpid()) watches_[peer].reset(new Watch(pid));
  }
}

bool Group::can_reach_all(bool wanted) {
  std::vector<int> pids;
  for (int peer = 0; peer < size_; peer++) pids.push_back(pid(peer));
  if (wanted) allow_relatives(pids);
  // The header holds kMagic in every rank's mapping, but each knows only where its own is.
  Call call;
  call.in = reinterpret_cast<uint64_t>(&segment_->header().magic);
  arrive(call);
  wait_all();
  bool all = wanted;
  for (int peer = 0; peer < size_ && all; peer++)
    all = peer == index_ || can_read(pid(peer), call_of(peer).in, kMagic);
  call.root = all ? 1 : 0;
  arrive(call);
  wait_all();
  for (int peer = 0; peer < size_; peer++) all = all && call_of(peer).root == 1;
  return all;
}

// ---- failing ----

void Group::fail(Failure kind, const std::string& text) {
  Header& header = segment_->header();
  uint32_t none = 0;
  if (header.failed.compare_exchange_strong(none, 1)) {
    header.failure.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
    std::strncpy(header.text, text.c_str(), sizeof(header.text) - 1);
    header.failed.store(2, std::memory_order_release);
    for (int i = 0; i < size_; i++) {
      futex_wake(segment_->cell(i, 0).tick);
      futex_wake(segment_->cell(i, 1).tick);
      segment_->bell(i).rings.fetch_add(1);
      futex_wake(segment_->bell(i).rings);
    }
  }
  throw_failure();
}

void Group::throw_failure() {
  Header& header = segment_->header();
  // Whoever is writing the text might have been killed half-way: do not wait for it for ever.
  for (int i = 0; i < 1000 && header.failed.load(std::memory_order_acquire) == 1; i++)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  const bool whole = header.failed.load(std::memory_order_acquire) == 2;
  const std::string text = whole ? std::string(header.text, strnlen(header.text, sizeof(header.text)))
                                 : "a rank failed and was killed before it could say why";
  switch (static_cast<Failure>(header.failure.load(std::memory_order_relaxed))) {
    case Failure::timed_out:
      throw TimedOut(text);
    case Failure::peer_lost:
      throw PeerLost(text);
    case Failure::mismatch:
      throw Mismatch(text);
    case Failure::unsupported:
      throw Unsupported(text);
    default:
      throw Error(text);
  }
}

std::string Group::current() const {
  return op_ == Op::none ? "forming the group" : std::string(name_of(op_)) + " #" + std::to_string(seq_);
}

std::string Group::who(int index) {
  RankState& state = segment_->state(index);
  const std::string host(state.host, strnlen(state.host, sizeof(state.host)));
  return "rank " + std::to_string(state.rank.load(std::memory_order_relaxed)) + " (process " +
         std::to_string(state.pid.load(std::memory_order_relaxed)) + " on " + host + ")";
}

std::string Group::doing(int index) {
  RankState& state = segment_->state(index);
  const auto op = static_cast<Op>(state.op.load(std::memory_order_relaxed));
  std::string text;
  if (op == Op::none) {
    text = "it has not called any collective yet";
  } else {
    const bool inside = state.inside.load(std::memory_order_relaxed) != 0;
    text = std::string(inside ? "it is in " : "its last was ") + name_of(op) + " #" +
           std::to_string(state.seq.load(std::memory_order_relaxed));
  }
  return stopped(index) ? text + ", and it is stopped by a signal" : text;
}

uint32_t Group::tick_of(int peer) {
  const uint32_t one = segment_->cell(peer, 0).tick.load(std::memory_order_acquire);
  const uint32_t other = segment_->cell(peer, 1).tick.load(std::memory_order_acquire);
  return static_cast<int32_t>(one - other) > 0 ? one : other;
}

// As far as can be seen from here: -1 for nobody.
int Group::waits_for(int peer) {
  RankState& state = segment_->state(peer);
  if (stopped(peer)) return -1;
  if (state.inside.load(std::memory_order_relaxed) == 0) return state.mail_peer.load(std::memory_order_relaxed) - 1;
  for (int other = 0; other < size_; other++)
    if (static_cast<int32_t>(tick_of(other) - tick_of(peer)) < 0) return other;
  return -1;
}

std::string Group::trail(int index) {
  std::string text = doing(index);
  std::vector<bool> seen(size_);
  seen[index_] = seen[index] = true;
  for (int next = waits_for(index); next >= 0 && next < size_ && !seen[next]; next = waits_for(next)) {
    seen[next] = true;
    text += "; it waits for " + who(next) + ": " + doing(next);
  }
  return text;
}

std::string Group::trouble_here() {
  std::string text;
  for (int peer = 0; peer < size_; peer++) {
    const bool dead = !alive(peer);
    if (dead || stopped(peer)) text += "; " + who(peer) + (dead ? " died" : " is stopped by a signal");
  }
  return text;
}

bool Group::has_left(int index) {
  return segment_->state(index).presence.load(std::memory_order_acquire) == static_cast<uint32_t>(Presence::left);
}

bool Group::arrived(int peer) {
  return static_cast<int32_t>(segment_->cell(peer, tick_).tick.load(std::memory_order_acquire) - tick_) >= 0;
}

void Group::check(int peer) {
  const bool down = failed(), dead = !alive(peer), left = has_left(peer);
  // Looked at last: it may have arrived with its last breath. What went wrong after that is for what comes
  // after that to find out.
  if (arrived(peer)) return;
  if (down) throw_failure();
  if (dead) fail(Failure::peer_lost, who(peer) + " died; " + current() + " cannot be finished");
  if (left) fail(Failure::peer_lost, who(peer) + " has left the group; " + current() + " cannot be finished");
  if (Clock::now() <= deadline_) return;
  // A leader that waits for other hosts knows better than we do who is to blame.
  const bool linking = segment_->state(peer).linking.load(std::memory_order_acquire) != 0;
  if (linking && Clock::now() <= deadline_ + kLeaderGrace) return;
  blame_late();
}

void Group::blame_late() {
  std::string late;
  for (int peer = 0; peer < size_; peer++) {
    if (arrived(peer)) continue;
    if (late.size() > kTextBytes / 2) {
      late += ", and others";
      break;
    }
    late += (late.empty() ? "" : "; ") + who(peer) + " did not come: " + doing(peer);
  }
  if (late.empty()) return;  // they came while we looked
  char after[40] = "";  // what it took to form the group is not ours to say
  if (op_ != Op::none) std::snprintf(after, sizeof(after), " after %g s", static_cast<double>(timeout_.count()) / 1000.0);
  fail(Failure::timed_out, current() + " timed out" + after + ": " + late);
}

// ---- arriving ----

void Group::check_usable() {
  if (!failed()) return;
  try {
    throw_failure();
  } catch (const Error& error) {
    throw Broken(std::string("this group failed before and cannot be used any more: ") + error.what());
  }
}

void Group::begin(Op op, uint64_t seq, Deadline deadline, std::chrono::milliseconds timeout) {
  check_usable();
  op_ = op, seq_ = seq, deadline_ = deadline, timeout_ = timeout;
  RankState& state = me();
  state.op.store(static_cast<uint32_t>(op), std::memory_order_relaxed);
  state.seq.store(seq, std::memory_order_relaxed);
  state.inside.store(1, std::memory_order_relaxed);
}

void Group::end(bool finished) {
  if (!finished) me().gave_up.store(seq_, std::memory_order_release);
  me().inside.store(0, std::memory_order_relaxed);
}

void Group::arrive(const Call& call) {
  segment_->cell(index_, tick_ + 1).call = call;
  arrive();
}

void Group::arrive() {
  Cell& cell = segment_->cell(index_, ++tick_);
  cell.tick.store(tick_);
  wake_sleepers(cell.tick, segment_->bell(index_).sleepers);
}

void Group::wait_all() {
  for (int step = 1; step < size_; step++) {
    // Not everybody polls the same line first.
    const int peer = (index_ + step) % size_;
    Cell& cell = segment_->cell(peer, tick_);
    wait_until(
        cell.tick, segment_->bell(peer).sleepers, tuning_.patience, [&] { return arrived(peer); },
        [&] { check(peer); });
  }
}

void Group::compare_calls() {
  const Call& mine = call_of(index_);
  for (int peer = 0; peer < size_; peer++) {
    const Call& other = call_of(peer);
    const bool same = other.op == mine.op && other.seq == mine.seq && other.dtype == mine.dtype &&
                      other.redop == mine.redop && other.root == mine.root && other.even == mine.even &&
                      (mine.even == 0 || other.bytes == mine.bytes);
    if (same) continue;
    const int low = std::min(peer, index_), high = std::max(peer, index_);
    fail(Failure::mismatch, "ranks called different things: " + who(low) + ": " + describe(call_of(low)) + "; " +
                                who(high) + ": " + describe(call_of(high)));
  }
}

// ---- each other's memory ----

void Group::read(int peer, void* to, uint64_t from, size_t bytes) {
  try {
    read_memory(reach_, pid(peer), to, from, bytes);
  } catch (const Error& error) {
    fail_to_reach(peer, error);
  }
}

void Group::write(int peer, uint64_t to, const void* from, size_t bytes) {
  try {
    write_memory(reach_, pid(peer), to, from, bytes);
  } catch (const Error& error) {
    fail_to_reach(peer, error);
  }
}

// Whom we cannot reach is lost to all: the others wait for us, and would not learn of it by themselves.
void Group::fail_to_reach(int peer, const Error& error) {
  if (dynamic_cast<const PeerLost*>(&error) != nullptr)
    fail(Failure::peer_lost, who(peer) + " died; " + current() + " cannot be finished");
  fail(Failure::other, current() + " failed: " + error.what());
}

// Nobody may touch its buffers before all have taken from them, and written to them, what they must. Who
// gave up on this collective did not wait for that: what was read from it since may be anything.
void Group::close_buffers() {
  arrive();
  wait_all();
  if (!failed()) return;
  for (int peer = 0; peer < size_; peer++) {
    const uint64_t unfinished = segment_->state(peer).gave_up.load(std::memory_order_acquire);
    if (unfinished != 0 && unfinished <= seq_) throw_failure();
  }
}

// ---- rounds ----

size_t Group::one_shot_limit() const {
  // Every rank reads every slot: with more ranks the better way begins at smaller sizes.
  const size_t most = reach_ == Reach::slots ? 4 * tuning_.one_shot_bytes : tuning_.one_shot_bytes;
  return std::min(std::max<size_t>(most * 4 / std::max(4, size_), 1024), segment_->layout().slot_bytes() / 2);
}

bool Group::fits_one_shot() const {
  for (int peer = 0; peer < size_; peer++)
    if (call_of(peer).bytes > one_shot_limit()) return false;
  return true;
}

void Group::offer(Call& call, const std::vector<ConstSpan>& pieces) {
  const uint32_t next = tick_ + 1;
  call.bytes = 0;
  call.pieces = static_cast<uint32_t>(pieces.size());
  for (const ConstSpan& piece : pieces) call.bytes += piece.bytes;
  if (pieces.size() == 1) {
    call.in = reinterpret_cast<uint64_t>(pieces[0].data);
  } else {
    PieceEntry* table = segment_->table(index_, next);
    for (const ConstSpan& piece : pieces) *table++ = {reinterpret_cast<uint64_t>(piece.data), piece.bytes};
  }
  if (call.bytes > one_shot_limit()) return;
  char* slot = segment_->slot(index_, next);
  for (const ConstSpan& piece : pieces) {
    if (piece.data != nullptr) copy(slot, piece.data, piece.bytes);
    slot += round_up(piece.bytes, kLine);
  }
}

// Where a peer says its piece is: an address in that peer's memory.
ConstSpan Group::piece_of(int peer, int piece) const {
  const Call& call = call_of(peer);
  if (call.pieces == 1) return {reinterpret_cast<const void*>(call.in), piece == 0 ? call.bytes : 0};
  if (static_cast<uint32_t>(piece) >= call.pieces) return {};
  const PieceEntry& entry = segment_->table(peer, tick_)[piece];
  return {reinterpret_cast<const void*>(entry.address), entry.bytes};
}

void Group::expect(const Take& take, size_t offered) {
  const size_t end = take.offset + take.to.bytes;
  if (take.whole ? end == offered : end <= offered) return;
  fail(Failure::mismatch, "sizes differ in " + current() + ": " + who(take.peer) + " gives " + std::to_string(offered) +
                              " bytes, " + who(index_) + " takes " + std::to_string(take.offset + take.to.bytes));
}

void Group::round(Call call, const std::vector<ConstSpan>& pieces, const std::vector<Take>& takes, const Fold* fold) {
  call.op = op_, call.seq = seq_;
  offer(call, pieces);
  arrive(call);
  wait_all();
  compare_calls();
  for (const Take& take : takes) expect(take, piece_of(take.peer, take.piece).bytes);
  if (fold != nullptr)
    for (int peer = 0; peer < size_; peer++)
      expect({peer, fold->piece, 0, {nullptr, fold->count * size_of(fold->dtype)}}, piece_of(peer, fold->piece).bytes);
  if (fits_one_shot()) {
    through_slots_once(pieces, takes, fold);
  } else if (reach_ == Reach::slots) {
    through_windows(pieces, takes, fold);
  } else {
    from_buffers(pieces, takes, fold);
  }
}

void Group::fold_chunk(const Fold& fold, size_t offset, size_t count, const void* const* sources) {
  const size_t element = size_of(fold.dtype);
  if (fold.op != RedOp::premul_sum) {
    plough::reduce(fold.dtype, fold.op, at(fold.to, offset * element), sources, size_, count, nullptr, fold.divisor);
    return;
  }
  std::vector<double> scales(size_);
  for (int peer = 0; peer < size_; peer++) scales[peer] = call_of(peer).scale;
  plough::reduce(fold.dtype, fold.op, at(fold.to, offset * element), sources, size_, count, scales.data(), fold.divisor);
}

void Group::through_slots_once(const std::vector<ConstSpan>& own, const std::vector<Take>& takes, const Fold* fold) {
  const auto in_slot = [&](int peer, int piece) {
    const char* slot = segment_->slot(peer, tick_);
    for (int before = 0; before < piece; before++) slot += round_up(piece_of(peer, before).bytes, kLine);
    return slot;
  };
  for (const Take& take : takes) {
    const void* from = take.peer == index_ ? own[take.piece].data : in_slot(take.peer, take.piece);
    copy(take.to.data, at(from, take.offset), take.to.bytes);
  }
  if (fold == nullptr || fold->count == 0) return;
  const void* sources[kLine];
  std::vector<const void*> many;
  const void** list = sources;
  if (static_cast<size_t>(size_) > kLine) many.resize(size_), list = many.data();
  for (int peer = 0; peer < size_; peer++) list[peer] = in_slot(peer, fold->piece);
  fold_chunk(*fold, 0, fold->count, list);
}

void Group::through_windows(const std::vector<ConstSpan>& own, const std::vector<Take>& takes, const Fold* fold) {
  // What is needed of the calls must be copied: later ticks write over them.
  std::vector<size_t> parts(size_);
  size_t windows = 0;
  for (int peer = 0; peer < size_; peer++) {
    const uint32_t pieces = std::max(1U, call_of(peer).pieces);
    parts[peer] = segment_->layout().slot_bytes() / pieces / kLine * kLine;
    for (uint32_t piece = 0; piece < pieces; piece++)
      windows = std::max(windows, (piece_of(peer, static_cast<int>(piece)).bytes + parts[peer] - 1) / parts[peer]);
  }
  std::vector<double> scales(size_);
  for (int peer = 0; peer < size_; peer++) scales[peer] = call_of(peer).scale;
  for (size_t window = 0; window < windows; window++) {
    char* slot = segment_->slot(index_, tick_ + 1);
    const size_t begin = window * parts[index_];
    for (size_t piece = 0; piece < own.size(); piece++)
      if (begin < own[piece].bytes && own[piece].data != nullptr)
        copy(slot + piece * parts[index_], at(own[piece].data, begin), std::min(parts[index_], own[piece].bytes - begin));
    arrive();
    wait_all();
    for (const Take& take : takes) {
      const size_t first = std::max(window * parts[take.peer], take.offset);
      const size_t last = std::min((window + 1) * parts[take.peer], take.offset + take.to.bytes);
      if (first >= last) continue;
      const char* from = segment_->slot(take.peer, tick_) + take.piece * parts[take.peer];
      copy(at(take.to.data, first - take.offset), from + (first - window * parts[take.peer]), last - first);
    }
    if (fold == nullptr) continue;
    const size_t element = size_of(fold->dtype), part = parts[index_];
    const size_t total = fold->count * element;
    if (window * part >= total) continue;
    std::vector<const void*> sources(size_);
    for (int peer = 0; peer < size_; peer++) sources[peer] = segment_->slot(peer, tick_) + fold->piece * part;
    plough::reduce(fold->dtype, fold->op, at(fold->to, window * part), sources.data(), size_,
                   std::min(part, total - window * part) / element,
                   fold->op == RedOp::premul_sum ? scales.data() : nullptr, fold->divisor);
  }
}

void Group::from_buffers(const std::vector<ConstSpan>& own, const std::vector<Take>& takes, const Fold* fold) {
  struct Job {
    const Take* take;  // null: a part of the fold
    size_t offset, length;
  };
  std::vector<Job> jobs;
  const size_t chunk = tuning_.chunk_bytes;
  for (const Take& take : takes) {
    if (take.peer == index_) {
      copy(take.to.data, at(own[take.piece].data, take.offset), take.to.bytes);
      continue;
    }
    // Without helpers nothing is gained by small pieces but a look at whether the group still stands.
    const size_t step = tuning_.workers > 1 ? chunk : 8 * chunk;
    for (size_t at = 0; at < take.to.bytes; at += step) jobs.push_back({&take, at, std::min(step, take.to.bytes - at)});
  }
  if (fold != nullptr)
    for (size_t at = 0, total = fold->count * size_of(fold->dtype); at < total; at += chunk)
      jobs.push_back({nullptr, at, std::min(chunk, total - at)});
  pool_->run(jobs.size(), [&](size_t number) {
    const Job& job = jobs[number];
    if (failed()) throw_failure();
    if (job.take != nullptr) {
      const Take& take = *job.take;
      const auto from = reinterpret_cast<uint64_t>(piece_of(take.peer, take.piece).data);
      read(take.peer, at(take.to.data, job.offset), from + take.offset + job.offset, job.length);
      return;
    }
    char* memory = thread_scratch(chunk * size_);
    std::vector<const void*> sources(size_);
    for (int peer = 0; peer < size_; peer++) {
      if (peer == index_) {
        sources[peer] = at(own[fold->piece].data, job.offset);
        continue;
      }
      const auto from = reinterpret_cast<uint64_t>(piece_of(peer, fold->piece).data);
      read(peer, memory + peer * chunk, from + job.offset, job.length);
      sources[peer] = memory + peer * chunk;
    }
    const size_t element = size_of(fold->dtype);
    fold_chunk(*fold, job.offset / element, job.length / element, sources.data());
  });
  close_buffers();
}

// ---- reductions of whole buffers ----

void Group::allreduce(Call call, const void* in, void* out, size_t count, DType dtype, RedOp op, double divisor) {
  const Fold whole{0, out, count, dtype, op, divisor};
  const size_t bytes = count * size_of(dtype);
  if (bytes <= one_shot_limit()) {
    round(call, {{in, bytes}}, {}, &whole);
    return;
  }
  call.op = op_, call.seq = seq_, call.bytes = bytes;
  call.in = reinterpret_cast<uint64_t>(in), call.out = reinterpret_cast<uint64_t>(out);
  if (reach_ == Reach::slots) {
    shards_through_slots(whole, in, call);
    return;
  }
  arrive(call);
  wait_all();
  compare_calls();
  shards_to_buffers(whole, in, -1);
}

void Group::reduce(Call call, int root, const void* in, void* out, size_t count, DType dtype, RedOp op,
                   double divisor) {
  const Fold whole{0, out, count, dtype, op, divisor};
  const size_t bytes = count * size_of(dtype);
  if (bytes <= one_shot_limit() || reach_ == Reach::slots) {
    round(call, {{in, bytes}}, {}, index_ == root ? &whole : nullptr);
    return;
  }
  call.op = op_, call.seq = seq_, call.bytes = bytes;
  call.in = reinterpret_cast<uint64_t>(in), call.out = reinterpret_cast<uint64_t>(out);
  arrive(call);
  wait_all();
  compare_calls();
  shards_to_buffers(whole, in, root);
}

// Each rank reduces one shard, straight from the buffers of the others, and writes it into their results
// while it is still in its cache. A shard of anybody's buffer is read and written by its owner alone, so
// results may lie where the data was.
void Group::shards_to_buffers(const Fold& whole, const void* in, int only) {
  const size_t element = size_of(whole.dtype), shard = shard_size(whole.count, size_, element);
  const size_t first = std::min(whole.count, shard * index_) * element;
  const size_t last = std::min(whole.count, shard * (index_ + 1)) * element;
  const size_t chunk = tuning_.chunk_bytes;
  const bool keep = only < 0 || only == index_;
  pool_->run((last - first + chunk - 1) / chunk, [&](size_t number) {
    const size_t offset = first + number * chunk, length = std::min(chunk, last - offset);
    if (failed()) throw_failure();
    char* memory = thread_scratch(chunk * size_);
    std::vector<const void*> sources(size_);
    for (int peer = 0; peer < size_; peer++) {
      sources[peer] = peer == index_ ? at(in, offset) : memory + peer * chunk;
      if (peer != index_) read(peer, memory + peer * chunk, call_of(peer).in + offset, length);
    }
    // Ours of the scratch is free: where the result goes if it is not for us.
    Fold part = whole;
    part.to = keep ? at(whole.to, offset) : memory + index_ * chunk;
    fold_chunk(part, 0, length / element, sources.data());
    for (int step = 1; step < size_; step++) {
      const int peer = (index_ + step) % size_;
      if (only >= 0 && peer != only) continue;
      // After a failure the others may have gone on with their buffers.
      if (failed()) throw_failure();
      write(peer, call_of(peer).out + offset, part.to, length);
    }
  });
  close_buffers();
}

// The same without a way into each other's buffers. Three things happen in each step: a chunk of every
// shard is laid out for its owner, the chunk before is reduced by its owner, and the one before that,
// reduced, is taken by all. What is read was written in the step before, so one arrival a step is enough.
void Group::shards_through_slots(const Fold& whole, const void* in, const Call& call) {
  const size_t element = size_of(whole.dtype), shard = shard_size(whole.count, size_, element) * element;
  const size_t total = whole.count * element;
  const size_t part = segment_->layout().slot_bytes() / (size_ + 1) / kLine * kLine;
  const size_t chunks = (shard + part - 1) / part;
  const auto range = [&](int owner, size_t chunk) {  // bytes of a chunk of a shard, maybe none
    const size_t begin = std::min(total, std::min(shard * owner + chunk * part, shard * (owner + 1)));
    const size_t end = std::min({total, shard * (owner + 1), begin + part});
    return std::pair<size_t, size_t>(begin, end - begin);
  };
  std::vector<const void*> sources(size_);
  std::vector<double> scales(size_, 1.0);
  for (size_t step = 0; step < chunks + 2; step++) {
    char* next = segment_->slot(index_, tick_ + 1);
    if (step < chunks)
      for (int owner = 0; owner < size_; owner++) {
        const auto [begin, length] = range(owner, step);
        if (owner != index_) copy(next + owner * part, at(in, begin), length);
      }
    if (step >= 1 && step <= chunks) {
      const auto [begin, length] = range(index_, step - 1);
      for (int peer = 0; peer < size_; peer++)
        sources[peer] = peer == index_ ? at(in, begin) : segment_->slot(peer, tick_) + index_ * part;
      if (length > 0)
        plough::reduce(whole.dtype, whole.op, at(whole.to, begin), sources.data(), size_, length / element,
                       whole.op == RedOp::premul_sum ? scales.data() : nullptr, whole.divisor);
      copy(next + size_ * part, at(whole.to, begin), length);
    }
    if (step >= 2)
      for (int owner = 0; owner < size_; owner++) {
        const auto [begin, length] = range(owner, step - 2);
        if (owner != index_) copy(at(whole.to, begin), segment_->slot(owner, tick_) + size_ * part, length);
      }
    if (step == chunks + 1) return;  // only taken: nobody has to know
    if (step > 0) {
      arrive();
      wait_all();
      continue;
    }
    arrive(call);
    wait_all();
    compare_calls();
    for (int peer = 0; peer < size_; peer++) scales[peer] = call_of(peer).scale;
  }
}

}  // namespace plough
