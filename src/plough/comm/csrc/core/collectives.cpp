#include "collectives.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "reduce.h"
#include "scratch.h"

namespace plough {
namespace {

// Large reductions go over the network in parts, so that what a leader must hold beside them is bounded.
constexpr size_t kNetworkPart = 16 << 20;
// Below this, hosts send each other everything at once; above, each reduces a shard.
constexpr size_t kWholeToAll = 16 << 10;

size_t total(const std::vector<ConstSpan>& spans) {
  size_t bytes = 0;
  for (const ConstSpan& span : spans) bytes += span.bytes;
  return bytes;
}

std::vector<ConstSpan> read_only(const std::vector<Span>& spans) { return {spans.begin(), spans.end()}; }

// Where several spans begin if they lie side by side in memory, else null.
const void* side_by_side(const std::vector<ConstSpan>& spans) {
  const char *begin = nullptr, *end = nullptr;
  for (const ConstSpan& span : spans) {
    if (span.bytes == 0) continue;
    const char* data = static_cast<const char*>(span.data);
    if (begin == nullptr) begin = end = data;
    if (data != end) return nullptr;
    end += span.bytes;
  }
  return begin;
}

// Several spans as one piece of memory: themselves if they lie side by side, else a copy.
class Packed {
 public:
  explicit Packed(const std::vector<ConstSpan>& spans) : whole_{side_by_side(spans), total(spans)} {
    if (whole_.data != nullptr || whole_.bytes == 0) return;
    copy_ = Scratch(whole_.bytes);
    char* to = copy_.data();
    for (const ConstSpan& span : spans) {
      if (span.bytes > 0) std::memcpy(to, span.data, span.bytes);
      to += span.bytes;
    }
    whole_.data = copy_.data();
  }

  ConstSpan whole() const { return whole_; }

 private:
  ConstSpan whole_;
  Scratch copy_;
};

// Several spans to be filled as one piece of memory; unpack() puts the bytes where they belong.
class Unpacked {
 public:
  explicit Unpacked(const std::vector<Span>& spans)
      : spans_(spans), whole_{const_cast<void*>(side_by_side(read_only(spans))), total(read_only(spans))} {
    if (whole_.data != nullptr) return;
    copy_ = Scratch(whole_.bytes);
    whole_.data = copy_.data();
  }

  Span whole() const { return whole_; }

  void unpack() const {
    if (copy_.size() == 0) return;
    const char* from = copy_.data();
    for (const Span& span : spans_) {
      if (span.bytes > 0) std::memcpy(span.data, from, span.bytes);
      from += span.bytes;
    }
  }

 private:
  std::vector<Span> spans_;
  Span whole_;
  Scratch copy_;
};

Call call_for(DType dtype, int root = -1, bool even = true) {
  Call call;
  call.dtype = static_cast<uint8_t>(dtype);
  call.root = root;
  call.even = even ? 1 : 0;
  return call;
}

Call call_for(const Reduction& how, int root = -1) {
  Call call = call_for(how.dtype, root);
  call.redop = static_cast<uint8_t>(how.op);
  call.scale = how.scale;
  return call;
}

}  // namespace

// The begin and the end of a collective, also when it throws.
class Collectives::Scope {
 public:
  Scope(Group& group, Op op, const Turn& turn) : group_(group) {
    group_.begin(op, turn.seq, turn.deadline, turn.timeout);
  }
  ~Scope() { group_.end(std::uncaught_exceptions() == before_); }

 private:
  Group& group_;
  const int before_ = std::uncaught_exceptions();
};

Collectives::Collectives(std::unique_ptr<Group> group, std::unique_ptr<Link> link, std::vector<Place> places,
                         int rank)
    : group_(std::move(group)),
      link_(std::move(link)),
      places_(std::move(places)),
      rank_(rank),
      host_(places_[rank].host) {
  for (size_t r = 0; r < places_.size(); r++) {
    const auto host = static_cast<size_t>(places_[r].host);
    if (members_.size() <= host) members_.resize(host + 1);
    members_[host].push_back(static_cast<int>(r));
  }
}

std::string Collectives::what(const Call& call, const char* step) const {
  return group_->current() + ", " + name_of(static_cast<DType>(call.dtype)) + ", " +
         name_of(static_cast<RedOp>(call.redop)) + ", root " + std::to_string(call.root) + ", " + step;
}

// Leaders only. A failure here is a failure of the group, and its ranks on this host must learn of it.
void Collectives::exchange(const std::string& what, const std::vector<ConstSpan>& sends,
                           const std::vector<Span>& recvs) {
  group_->linking(true);
  const auto explained = [&](const Error& error) { return explain_ ? explain_(error.what()) : error.what(); };
  try {
    link_->exchange(what, sends, recvs, group_->deadline());
  } catch (const TimedOut& error) {
    group_->fail(Failure::timed_out, explained(error));
  } catch (const PeerLost& error) {
    group_->fail(Failure::peer_lost, explained(error));
  } catch (const Mismatch& error) {
    group_->fail(Failure::mismatch, error.what());
  } catch (const Error& error) {
    group_->fail(Failure::other, explained(error));
  }
  group_->linking(false);
}

// Leaders only: reduce `data`, each host's part, in the order of the hosts. The result is at every leader,
// or only at that of `root_host`.
void Collectives::reduce_between_hosts(const Call& call, void* data, size_t count, const Reduction& how,
                                       int root_host) {
  const size_t element = size_of(how.dtype), bytes = count * element;
  const auto hosts = static_cast<size_t>(this->hosts());
  const RedOp op = how.op == RedOp::premul_sum ? RedOp::sum : how.op;
  const double divisor = static_cast<double>(places_.size());
  std::vector<ConstSpan> sends(hosts);
  std::vector<Span> recvs(hosts);
  std::vector<const void*> sources(hosts);
  const bool whole = bytes <= kWholeToAll;
  const size_t shard = whole ? count : (count + hosts - 1) / hosts;
  const auto part = [&](size_t host) {  // what is reduced at a host, in bytes
    if (whole) return std::pair<size_t, size_t>(0, bytes);
    const size_t begin = std::min(count, shard * host), end = std::min(count, shard * (host + 1));
    return std::pair<size_t, size_t>(begin * element, (end - begin) * element);
  };
  const auto [own_begin, own_bytes] = part(host_);
  const bool reduces = !whole || root_host < 0 || root_host == host_;
  const Scratch received(reduces ? own_bytes * hosts : 0);
  for (size_t h = 0; h < hosts; h++) {
    if (h == static_cast<size_t>(host_)) continue;
    const auto [begin, length] = part(h);
    if (!whole || root_host < 0 || root_host == static_cast<int>(h)) sends[h] = {at(data, begin), length};
    if (reduces) recvs[h] = {received.data() + h * own_bytes, own_bytes};
  }
  exchange(what(call, "partial sums"), sends, recvs);
  if (reduces) {
    for (size_t h = 0; h < hosts; h++) sources[h] = received.data() + h * own_bytes;
    sources[host_] = at(data, own_begin);
    plough::reduce(how.dtype, op, at(data, own_begin), sources.data(), this->hosts(), own_bytes / element, nullptr,
                   divisor);
  }
  if (whole) return;
  for (size_t h = 0; h < hosts; h++) {
    sends[h] = {}, recvs[h] = {};
    if (h == static_cast<size_t>(host_)) continue;
    const auto [begin, length] = part(h);
    if (root_host < 0 || root_host == static_cast<int>(h)) sends[h] = {at(data, own_begin), own_bytes};
    if (root_host < 0 || root_host == host_) recvs[h] = {at(data, begin), length};
  }
  exchange(what(call, "results"), sends, recvs);
}

// From the leader to the other ranks of its host.
void Collectives::hand_out(Call call, Span data) {
  call.root = -1;
  std::vector<Take> takes;
  std::vector<ConstSpan> pieces;
  if (group_->leads()) {
    pieces.push_back(data);
  } else {
    takes.push_back({0, 0, 0, data});
  }
  call.even = 0;
  group_->round(call, pieces, takes);
}

void Collectives::allreduce(const Turn& turn, const void* in, void* out, size_t count, const Reduction& how) {
  Scope scope(*group_, Op::allreduce, turn);
  const Call call = call_for(how);
  if (alone()) {
    group_->allreduce(call, in, out, count, how.dtype, how.op, static_cast<double>(places_.size()));
    return;
  }
  const size_t element = size_of(how.dtype), step = kNetworkPart / element;
  const RedOp here = how.op == RedOp::avg ? RedOp::sum : how.op;
  // Zero elements take one turn too, so that ranks that disagree about the size find out.
  for (size_t first = 0; first == 0 || first < count; first += step) {
    const size_t length = std::min(step, count - first);
    void* part = at(out, first * element);
    group_->reduce(call, 0, at(in, first * element), part, length, how.dtype, here, 1.0);
    if (group_->leads()) reduce_between_hosts(call, part, length, how, -1);
    hand_out(call, {part, length * element});
  }
}

void Collectives::reduce(const Turn& turn, const void* in, void* out, size_t count, const Reduction& how, int root) {
  Scope scope(*group_, Op::reduce, turn);
  const Call call = call_for(how, root);
  if (alone()) {
    group_->reduce(call, root, in, out, count, how.dtype, how.op, static_cast<double>(places_.size()));
    return;
  }
  const size_t element = size_of(how.dtype), step = kNetworkPart / element;
  const RedOp here_op = how.op == RedOp::avg ? RedOp::sum : how.op;
  const Scratch partial(group_->leads() ? std::min(step, count) * element : 0);
  for (size_t first = 0; first == 0 || first < count; first += step) {
    const size_t length = std::min(step, count - first);
    group_->reduce(call, 0, at(in, first * element), partial.data(), length, how.dtype, here_op, 1.0);
    if (group_->leads()) reduce_between_hosts(call, partial.data(), length, how, places_[root].host);
    if (!here(root)) continue;
    const Span result{at(out, first * element), length * element};
    if (root_index(root) == 0) {
      if (rank_ == root && result.bytes > 0) std::memcpy(result.data, partial.data(), result.bytes);
      continue;
    }
    Call last = call;
    last.even = 0;
    std::vector<Take> takes;
    if (rank_ == root) takes.push_back({0, 0, 0, result});
    group_->round(last, group_->leads() ? std::vector<ConstSpan>{{partial.data(), result.bytes}} : std::vector<ConstSpan>{},
                  takes);
  }
}

void Collectives::broadcast(const Turn& turn, DType dtype, Span data, int root) {
  Scope scope(*group_, Op::broadcast, turn);
  const Call call = call_for(dtype, root);
  if (here(root)) {
    // The others offer the size without the data, so that sizes are compared.
    std::vector<Take> takes;
    if (rank_ != root) takes.push_back({root_index(root), 0, 0, data});
    group_->round(call, {{rank_ == root ? data.data : nullptr, data.bytes}}, takes);
  }
  if (alone()) return;
  const auto hosts = static_cast<size_t>(this->hosts());
  const auto root_host = static_cast<size_t>(places_[root].host);
  if (group_->leads()) {
    std::vector<ConstSpan> sends(hosts);
    std::vector<Span> recvs(hosts);
    const size_t shard = (data.bytes + hosts - 1) / hosts;
    const auto part = [&](size_t host) {
      const size_t begin = std::min(data.bytes, shard * host), end = std::min(data.bytes, shard * (host + 1));
      return Span{at(data.data, begin), end - begin};
    };
    const bool from_here = root_host == static_cast<size_t>(host_);
    if (hosts == 2 || data.bytes <= kWholeToAll) {
      if (from_here) {
        for (size_t h = 0; h < hosts; h++)
          if (h != root_host) sends[h] = data;
      } else {
        recvs[root_host] = data;
      }
      exchange(what(call, "data"), sends, recvs);
    } else {
      // Each host gets a shard and passes it on: the root's host does not send everything to everybody.
      if (from_here) {
        for (size_t h = 0; h < hosts; h++)
          if (h != root_host) sends[h] = part(h);
      } else {
        recvs[root_host] = part(host_);
      }
      exchange(what(call, "shards"), sends, recvs);
      for (size_t h = 0; h < hosts; h++) {
        sends[h] = {}, recvs[h] = {};
        if (h == static_cast<size_t>(host_)) continue;
        if (h != root_host) sends[h] = part(host_);
        if (!from_here) recvs[h] = part(h);
      }
      exchange(what(call, "all shards"), sends, recvs);
    }
  }
  if (!here(root)) hand_out(call, data);
}

void Collectives::allgather(const Turn& turn, DType dtype, ConstSpan own, const std::vector<Span>& outs, bool even) {
  Scope scope(*group_, Op::allgather, turn);
  Call call = call_for(dtype, -1, even);
  std::vector<Take> takes;
  if (alone() || group_->leads())
    for (int rank : members_[host_]) takes.push_back({places_[rank].index, 0, 0, outs[rank]});
  group_->round(call, {own}, takes);
  if (alone()) return;
  if (group_->leads()) {
    std::vector<ConstSpan> sends(members_.size());
    std::vector<Span> recvs(members_.size());
    std::vector<ConstSpan> mine;
    for (int rank : members_[host_]) mine.push_back(outs[rank]);
    const Packed packed(mine);
    std::vector<std::unique_ptr<Unpacked>> blocks(members_.size());
    for (size_t h = 0; h < members_.size(); h++) {
      if (h == static_cast<size_t>(host_)) continue;
      std::vector<Span> theirs;
      for (int rank : members_[h]) theirs.push_back(outs[rank]);
      blocks[h].reset(new Unpacked(theirs));
      sends[h] = packed.whole(), recvs[h] = blocks[h]->whole();
    }
    exchange(what(call, "blocks"), sends, recvs);
    for (auto& block : blocks)
      if (block) block->unpack();
  }
  takes.clear();
  std::vector<ConstSpan> pieces;
  if (group_->leads()) {
    pieces = read_only(outs);
  } else {
    for (size_t rank = 0; rank < outs.size(); rank++) takes.push_back({0, static_cast<int>(rank), 0, outs[rank]});
  }
  call.even = 0;
  group_->round(call, pieces, takes);
}

void Collectives::gather(const Turn& turn, DType dtype, ConstSpan own, const std::vector<Span>& outs, int root) {
  Scope scope(*group_, Op::gather, turn);
  Call call = call_for(dtype, root);
  const auto& mine = members_[host_];
  Scratch block;
  std::vector<Take> takes;
  if (rank_ == root)
    for (int rank : mine) takes.push_back({places_[rank].index, 0, 0, outs[rank]});
  if (!here(root) && group_->leads()) {
    block = Scratch(own.bytes * mine.size());
    for (size_t i = 0; i < mine.size(); i++)
      takes.push_back({static_cast<int>(i), 0, 0, {block.data() + i * own.bytes, own.bytes}});
  }
  group_->round(call, {own}, takes);
  if (alone()) return;
  std::vector<ConstSpan> sends(members_.size()), pieces;
  std::vector<Span> recvs(members_.size());
  std::vector<Scratch> blocks(members_.size());
  if (group_->leads()) {
    if (here(root)) {
      for (size_t h = 0; h < members_.size(); h++) {
        if (h == static_cast<size_t>(host_)) continue;
        blocks[h] = Scratch(own.bytes * members_[h].size());
        recvs[h] = {blocks[h].data(), blocks[h].size()};
      }
    } else {
      sends[places_[root].host] = {block.data(), block.size()};
    }
    exchange(what(call, "blocks"), sends, recvs);
    pieces = read_only(recvs);
  }
  if (!here(root)) return;
  takes.clear();
  if (rank_ == root)
    for (size_t h = 0; h < members_.size(); h++)
      for (size_t i = 0; i < members_[h].size() && h != static_cast<size_t>(host_); i++)
        takes.push_back({0, static_cast<int>(h), i * own.bytes, outs[members_[h][i]], false});
  call.even = 0;
  group_->round(call, pieces, takes);
}

void Collectives::scatter(const Turn& turn, DType dtype, const std::vector<ConstSpan>& ins, Span own, int root) {
  Scope scope(*group_, Op::scatter, turn);
  Call call = call_for(dtype, root);
  std::vector<Scratch> blocks(members_.size());
  if (here(root)) {
    std::vector<Take> takes;
    takes.push_back({root_index(root), rank_, 0, own});
    for (size_t h = 0; h < members_.size() && group_->leads(); h++) {
      if (h == static_cast<size_t>(host_)) continue;
      blocks[h] = Scratch(own.bytes * members_[h].size());
      for (size_t i = 0; i < members_[h].size(); i++)
        takes.push_back({root_index(root), members_[h][i], 0, {blocks[h].data() + i * own.bytes, own.bytes}});
    }
    const std::vector<ConstSpan> size_only{{nullptr, own.bytes * places_.size()}};
    group_->round(call, rank_ == root ? ins : size_only, takes);
  }
  if (alone()) return;
  std::vector<ConstSpan> sends(members_.size()), pieces;
  std::vector<Span> recvs(members_.size());
  if (group_->leads()) {
    if (here(root)) {
      for (size_t h = 0; h < members_.size(); h++) sends[h] = {blocks[h].data(), blocks[h].size()};
      sends[host_] = {};
    } else {
      blocks[host_] = Scratch(own.bytes * members_[host_].size());
      recvs[places_[root].host] = {blocks[host_].data(), blocks[host_].size()};
    }
    exchange(what(call, "blocks"), sends, recvs);
  }
  if (here(root)) return;
  if (group_->leads()) pieces.push_back({blocks[host_].data(), blocks[host_].size()});
  call.root = -1, call.even = 0;
  group_->round(call, pieces, {{0, 0, places_[rank_].index * own.bytes, own, false}});
}

void Collectives::reduce_scatter(const Turn& turn, const std::vector<ConstSpan>& ins, void* out,
                                 const Reduction& how) {
  Scope scope(*group_, Op::reduce_scatter, turn);
  Call call = call_for(how);
  const size_t element = size_of(how.dtype), own_bytes = ins[rank_].bytes;
  const double divisor = static_cast<double>(places_.size());
  if (alone()) {
    const Fold fold{rank_, out, own_bytes / element, how.dtype, how.op, divisor};
    group_->round(call, ins, {}, &fold);
    return;
  }
  // Host by host, so that what goes to one host is in one piece.
  std::vector<ConstSpan> by_host;
  std::vector<size_t> begins;
  size_t bytes = 0;
  for (const auto& ranks : members_) {
    begins.push_back(bytes);
    for (int rank : ranks) by_host.push_back(ins[rank]), bytes += ins[rank].bytes;
  }
  begins.push_back(bytes);
  const Packed packed(by_host);
  const Scratch partial(group_->leads() ? bytes : 0);
  const RedOp here_op = how.op == RedOp::avg ? RedOp::sum : how.op;
  group_->reduce(call, 0, packed.whole().data, partial.data(), bytes / element, how.dtype, here_op, 1.0);
  const size_t own_begin = begins[host_], block = begins[host_ + 1] - own_begin;
  if (group_->leads()) {
    const auto hosts = members_.size();
    std::vector<ConstSpan> sends(hosts);
    std::vector<Span> recvs(hosts);
    const Scratch received(block * hosts);
    std::vector<const void*> sources(hosts);
    for (size_t h = 0; h < hosts; h++) {
      sources[h] = h == static_cast<size_t>(host_) ? partial.data() + own_begin : received.data() + h * block;
      if (h == static_cast<size_t>(host_)) continue;
      sends[h] = {partial.data() + begins[h], begins[h + 1] - begins[h]};
      recvs[h] = {received.data() + h * block, block};
    }
    exchange(what(call, "partial sums"), sends, recvs);
    plough::reduce(how.dtype, how.op == RedOp::premul_sum ? RedOp::sum : how.op, partial.data() + own_begin,
                   sources.data(), static_cast<int>(hosts), block / element, nullptr, divisor);
  }
  size_t offset = 0;
  for (int rank : members_[host_])
    if (rank < rank_) offset += ins[rank].bytes;
  call.even = 0;
  std::vector<ConstSpan> pieces;
  if (group_->leads()) pieces.push_back({partial.data() + own_begin, block});
  group_->round(call, pieces, {{0, 0, offset, {out, own_bytes}, false}});
}

void Collectives::alltoall(const Turn& turn, DType dtype, const std::vector<ConstSpan>& ins,
                           const std::vector<Span>& outs) {
  Scope scope(*group_, Op::alltoall, turn);
  const Call call = call_for(dtype, -1, false);
  const auto& mine = members_[host_];
  const size_t world = places_.size(), local = mine.size();
  // Who sends how much to whom, of all ranks of this host: where things lie in the blocks depends on it.
  std::vector<uint64_t> sizes(2 * world), all(alone() ? 0 : 2 * world * local);
  std::vector<Take> takes;
  if (!alone()) {
    for (size_t r = 0; r < world; r++) sizes[r] = ins[r].bytes, sizes[world + r] = outs[r].bytes;
    const size_t bytes = sizes.size() * sizeof(uint64_t);
    for (size_t i = 0; i < local; i++)
      takes.push_back({static_cast<int>(i), 0, 0, {all.data() + i * sizes.size(), bytes}});
    group_->round(call, {{sizes.data(), bytes}}, takes);
    takes.clear();
  }
  const auto sent = [&](size_t i, int to) { return all[i * 2 * world + to]; };
  const auto gets = [&](size_t i, int from) { return all[i * 2 * world + world + from]; };
  for (int rank : mine) takes.push_back({places_[rank].index, rank_, 0, outs[rank]});
  std::vector<Scratch> going(members_.size()), coming(members_.size());
  for (size_t h = 0; h < members_.size() && group_->leads(); h++) {
    if (h == static_cast<size_t>(host_)) continue;
    size_t bytes = 0, expected = 0;
    for (size_t i = 0; i < local; i++)
      for (int to : members_[h]) bytes += sent(i, to);
    for (int from : members_[h])
      for (size_t i = 0; i < local; i++) expected += gets(i, from);
    going[h] = Scratch(bytes), coming[h] = Scratch(expected);
    char* place = going[h].data();
    for (size_t i = 0; i < local; i++)
      for (int to : members_[h]) {
        takes.push_back({static_cast<int>(i), to, 0, {place, sent(i, to)}});
        place += sent(i, to);
      }
  }
  group_->round(call, ins, takes);
  if (alone()) return;
  std::vector<ConstSpan> sends(members_.size()), pieces;
  std::vector<Span> recvs(members_.size());
  if (group_->leads()) {
    for (size_t h = 0; h < members_.size(); h++)
      sends[h] = {going[h].data(), going[h].size()}, recvs[h] = {coming[h].data(), coming[h].size()};
    exchange(what(call, "blocks"), sends, recvs);
    pieces = read_only(recvs);
  }
  takes.clear();
  for (size_t h = 0; h < members_.size(); h++) {
    if (h == static_cast<size_t>(host_)) continue;
    size_t offset = 0;
    for (int from : members_[h])
      for (size_t i = 0; i < local; i++) {
        if (mine[i] == rank_) takes.push_back({0, static_cast<int>(h), offset, outs[from], false});
        offset += gets(i, from);
      }
  }
  group_->round(call, pieces, takes);
}

void Collectives::barrier(const Turn& turn) {
  Scope scope(*group_, Op::barrier, turn);
  const Call call = call_for(DType::u8);
  group_->round(call, {}, {});
  if (alone()) return;
  if (group_->leads()) {
    char token = 1;
    std::vector<char> tokens(members_.size());
    std::vector<ConstSpan> sends(members_.size(), ConstSpan{&token, 1});
    std::vector<Span> recvs;
    for (char& place : tokens) recvs.push_back({&place, 1});
    sends[host_] = {}, recvs[host_] = {};
    exchange(what(call, "tokens"), sends, recvs);
  }
  group_->round(call, {}, {});
}

}  // namespace plough
