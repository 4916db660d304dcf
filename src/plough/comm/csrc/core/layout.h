// What lies where in the memory the ranks of one host share. See docs/concepts/collectives.md for a picture.
//
//   Header | RankState x n | Cell x 2n | piece tables x 2n | slots x 2n | channels x n*n
//
// Everything two ranks touch at once is an atomic on a cache line of its own. Nothing here holds a pointer:
// every rank maps the memory at another address. Must not know how the memory came to be shared.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace plough {

constexpr size_t kLine = 64;
constexpr uint64_t kMagic = 0x504c4f5547483031;  // "PLOUGH01": change it when the layout changes
constexpr size_t kTextBytes = 1024;
constexpr size_t kHostBytes = 128;

constexpr size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// The failure everybody in the group learns of: the first one wins.
enum class Failure : uint32_t { none, timed_out, peer_lost, mismatch, unsupported, other };

struct alignas(kLine) Header {
  uint64_t magic;
  uint32_t ranks;        // on this host
  uint32_t world;        // in the whole group
  uint64_t slot_bytes;
  char token[32];        // tells the right memory from another with the same number
  std::atomic<uint32_t> failed;  // 0: no, 1: being written, 2: text can be read
  std::atomic<uint32_t> failure;
  char text[kTextBytes];
};

enum class Presence : uint32_t { never_came, here, left };

// Who a rank is and what it is doing, for the others to tell when they have waited in vain.
struct alignas(kLine) RankState {
  std::atomic<uint32_t> presence;
  std::atomic<int32_t> pid;
  std::atomic<int32_t> rank;      // in the whole group
  std::atomic<uint32_t> op;       // the collective it is in, or was in last
  std::atomic<uint64_t> seq;      // its number
  std::atomic<uint32_t> inside;   // 1 while in it
  std::atomic<uint32_t> linking;  // 1 while it waits for other hosts
  std::atomic<uint64_t> gave_up;  // the number of the collective it left unfinished, or 0
  std::atomic<int32_t> mail_peer; // 1 + index of the rank a message to or from which is late, 0: none is
  char host[kHostBytes];
};

// Words that others sleep on, and how many do; apart from what is written often.
struct alignas(kLine) Bell {
  std::atomic<uint32_t> sleepers;  // waiting for this rank's next tick
  std::atomic<uint32_t> rings;     // of the mailbox: something was posted, taken or finished
  std::atomic<uint32_t> listeners; // waiting for a ring
};

enum class Op : uint8_t {
  none,
  allreduce,
  reduce,
  broadcast,
  allgather,
  gather,
  scatter,
  reduce_scatter,
  alltoall,
  barrier,
  send,
  recv,
};

const char* name_of(Op op);

// What a rank says of the call it is in. All ranks must say the same, but for the addresses and, where
// sizes may be uneven, the bytes.
struct Call {
  Op op = Op::none;
  uint8_t dtype = 0;
  uint8_t redop = 0;
  uint8_t even = 1;     // 1: bytes must agree
  int32_t root = -1;
  uint64_t seq = 0;
  uint64_t bytes = 0;   // offered, all pieces together
  uint64_t in = 0;      // address of the data if it is in one piece
  uint64_t out = 0;     // address of the result, for those who may write there
  double scale = 1.0;   // factor of RedOp::premul_sum
  uint32_t pieces = 1;  // more than one, or none: addresses are in the piece table
};

// A rank's arrival. Two per rank, used in turns: a rank can be one tick ahead of another, never two.
struct alignas(kLine) Cell {
  std::atomic<uint32_t> tick;
  Call call;
};
static_assert(sizeof(Cell) == kLine, "an arrival must cost one cache line");

struct PieceEntry {
  uint64_t address;
  uint64_t bytes;
};

// Point to point: messages from one rank to another.
constexpr uint32_t kMessages = 64;
constexpr size_t kEagerBytes = 2048;
constexpr size_t kStageBytes = 64 << 10;

enum class MessageState : uint32_t { free, posted, eager, done };

struct alignas(kLine) Message {
  std::atomic<uint32_t> state;
  int32_t tag;
  uint64_t bytes;
  uint64_t address;
};

struct Channel {
  alignas(kLine) std::atomic<uint64_t> posted;  // by the sender
  alignas(kLine) std::atomic<uint64_t> taken;   // by the receiver
  alignas(kLine) std::atomic<int32_t> staging;  // the message being streamed, -1 for none
  alignas(kLine) std::atomic<uint64_t> filled;  // chunks of it
  alignas(kLine) std::atomic<uint64_t> drained;
  uint32_t order[kMessages];  // which message was posted as the k-th
  Message messages[kMessages];
  char eager[kMessages][kEagerBytes];
  char stage[2][kStageBytes];
};

// Offsets of everything, from the three numbers a group has.
class Layout {
 public:
  Layout(uint32_t ranks, uint32_t world, uint64_t slot_bytes)
      : ranks_(ranks), tables_(2 * world + 2), slot_(slot_for(world, slot_bytes)) {
    size_t offset = round_up(sizeof(Header), kLine);
    states = offset, offset += ranks * sizeof(RankState);
    bells = offset, offset += ranks * sizeof(Bell);
    cells = offset, offset += 2 * ranks * sizeof(Cell);
    tables = offset, offset = round_up(offset + 2 * ranks * table_bytes(), 4096);
    slots = offset, offset += 2 * ranks * slot_;
    channels = offset, offset += size_t{ranks} * ranks * round_up(sizeof(Channel), 4096);
    bytes = round_up(offset, 4096);
  }

  size_t table_bytes() const { return round_up(tables_ * sizeof(PieceEntry), kLine); }
  size_t table_entries() const { return tables_; }
  size_t slot_bytes() const { return slot_; }
  size_t state(int i) const { return states + i * sizeof(RankState); }
  size_t bell(int i) const { return bells + i * sizeof(Bell); }
  size_t cell(int i, uint32_t tick) const { return cells + (2 * i + (tick & 1)) * sizeof(Cell); }
  size_t table(int i, uint32_t tick) const { return tables + (2 * i + (tick & 1)) * table_bytes(); }
  size_t slot(int i, uint32_t tick) const { return slots + (2 * i + (tick & 1)) * slot_; }
  size_t channel(int from, int to) const {
    return channels + (size_t{ranks_} * from + to) * round_up(sizeof(Channel), 4096);
  }

  size_t bytes;

 private:
  // Half of a slot for the bytes, half for what is lost where each rank's piece begins on a line of its own.
  static size_t slot_for(uint32_t world, uint64_t wanted) {
    return round_up(std::max<size_t>(wanted, 2 * kLine * (size_t{world} + 1)), 4096);
  }

  uint32_t ranks_;
  size_t tables_, slot_;
  size_t states, bells, cells, tables, slots, channels;
};

}  // namespace plough
