// Inputs are small whole numbers, so that every type holds every result exactly, in whatever order the ranks
// are reduced.
#include "cases.h"

#include <algorithm>
#include <cstring>

namespace plough {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::i64, DType::f64, DType::boolean};
constexpr RedOp kOps[] = {RedOp::sum,  RedOp::avg, RedOp::product, RedOp::min,       RedOp::max,
                          RedOp::band, RedOp::bor, RedOp::bxor,    RedOp::premul_sum};

bool reduces(Op op) { return op == Op::allreduce || op == Op::reduce || op == Op::reduce_scatter; }

RedOp redop_for(DType dtype, uint64_t pick) {
  for (;; pick++) {
    const RedOp op = kOps[pick % std::size(kOps)];
    const bool bits = op == RedOp::band || op == RedOp::bor || op == RedOp::bxor;
    const bool numbers = op == RedOp::avg || op == RedOp::premul_sum;
    if (dtype == DType::boolean ? !numbers : !bits || dtype == DType::i64) return op;
  }
}

template <class T>
void put_as(void* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

void put(DType dtype, void* to, int64_t value) {
  if (dtype == DType::f32) return put_as(to, static_cast<float>(value));
  if (dtype == DType::f64) return put_as(to, static_cast<double>(value));
  if (dtype == DType::i64) return put_as(to, value);
  if (dtype == DType::boolean) return put_as(to, static_cast<uint8_t>(value));
  const auto wide = static_cast<float>(value);  // bf16 is the upper half
  uint32_t bits;
  std::memcpy(&bits, &wide, sizeof(bits));
  put_as(to, static_cast<uint16_t>(bits >> 16));
}

// Halves, ones and twos: exact, and different for neighbours.
double scale_of(int rank) { return rank % 3 == 0 ? 0.5 : rank % 3; }

class Player {
 public:
  Player(Member& member, const Case& one) : member_(member), one_(one), element_(size_of(one.dtype)) {}

  void play() {
    const Turn turn = member_.turn();
    Collectives& ccl = *member_.ccl;
    const int rank = member_.rank;
    const size_t count = one_.count;
    const Reduction how{one_.dtype, one_.redop, scale_of(rank)};
    switch (one_.op) {
      case Op::allreduce: {
        Bytes in = inputs(rank, 0, count), out(in.size(), kOld);
        ccl.allreduce(turn, one_.in_place ? out_as(in, out) : in.data(), out.data(), count, how);
        if (!one_.in_place) compare(in, inputs(rank, 0, count), "the input");
        return compare(out, reduced(0, count), "the result");
      }
      case Op::reduce: {
        Bytes in = inputs(rank, 0, count), out(in.size(), kOld);
        const void* from = one_.in_place ? out_as(in, out) : in.data();
        ccl.reduce(turn, from, out.data(), count, how, one_.root);
        compare(in, inputs(rank, 0, count), "the input");
        if (rank == one_.root) return compare(out, reduced(0, count), "the result");
        return compare(out, one_.in_place ? in : Bytes(in.size(), kOld), "an output that is not the root's");
      }
      case Op::broadcast: {
        Bytes data = rank == one_.root ? inputs(rank, 0, count) : Bytes(count * element_, kOld);
        ccl.broadcast(turn, one_.dtype, {data.data(), data.size()}, one_.root);
        return compare(data, inputs(one_.root, 0, count), "the data");
      }
      case Op::allgather: {
        Pieces out(*this, kOld);
        for (int from = 0; from < member_.world; from++) out.add(size(from, 0));
        Bytes in = inputs(rank, 0, size(rank, 0));
        const ConstSpan own = one_.in_place ? out.fill(rank, in) : ConstSpan{in.data(), in.size()};
        ccl.allgather(turn, one_.dtype, own, out.spans(), !one_.uneven);
        for (int from = 0; from < member_.world; from++)
          compare(out.get(from), inputs(from, 0, size(from, 0)), "piece " + std::to_string(from));
        return;
      }
      case Op::gather: {
        Pieces out(*this, kOld);
        for (int from = 0; from < member_.world && rank == one_.root; from++) out.add(count);
        Bytes in = inputs(rank, 0, count);
        const bool inside = one_.in_place && rank == one_.root;
        const ConstSpan own = inside ? out.fill(rank, in) : ConstSpan{in.data(), in.size()};
        ccl.gather(turn, one_.dtype, own, out.spans(), one_.root);
        for (int from = 0; from < member_.world && rank == one_.root; from++)
          compare(out.get(from), inputs(from, 0, count), "piece " + std::to_string(from));
        return;
      }
      case Op::scatter: {
        Pieces in(*this, kOld);
        for (int to = 0; to < member_.world && rank == one_.root; to++) {
          in.add(count);
          in.fill(to, inputs(rank, to, count));
        }
        Bytes out(count * element_, kOld);
        ccl.scatter(turn, one_.dtype, in.sources(), {out.data(), out.size()}, one_.root);
        return compare(out, inputs(one_.root, rank, count), "the piece");
      }
      case Op::reduce_scatter: {
        Pieces in(*this, kOld);
        for (int to = 0; to < member_.world; to++) {
          in.add(size(to, 0));
          in.fill(to, inputs(rank, to, size(to, 0)));
        }
        Bytes out(size(rank, 0) * element_, kOld);
        void* place = one_.in_place ? in.spans()[static_cast<size_t>(rank)].data : out.data();
        ccl.reduce_scatter(turn, in.sources(), place, how);
        for (int to = 0; to < member_.world; to++)
          if (to != rank || !one_.in_place) compare(in.get(to), inputs(rank, to, size(to, 0)), "the input");
        return compare(one_.in_place ? in.get(rank) : out, reduced(rank, size(rank, 0)), "the result");
      }
      case Op::alltoall: {
        Pieces in(*this, kOld), out(*this, kOld);
        for (int peer = 0; peer < member_.world; peer++) {
          in.add(size(rank, peer)), in.fill(peer, inputs(rank, peer, size(rank, peer)));
          out.add(size(peer, rank));
        }
        ccl.alltoall(turn, one_.dtype, in.sources(), out.spans());
        for (int peer = 0; peer < member_.world; peer++)
          compare(out.get(peer), inputs(peer, rank, size(peer, rank)), "piece " + std::to_string(peer));
        return;
      }
      default:
        ccl.barrier(turn);
    }
  }

 private:
  using Bytes = std::vector<char>;
  static constexpr char kOld = 0x55;

  // Several pieces in one buffer or each in its own.
  class Pieces {
   public:
    Pieces(const Player& player, char old) : player_(player), old_(old), buffers_(1) {}

    void add(size_t count) {
      const size_t bytes = count * player_.element_;
      if (!player_.one_.together) buffers_.emplace_back();
      Bytes& buffer = buffers_.back();
      places_.push_back({buffers_.size() - 1, buffer.size(), bytes});
      buffer.resize(buffer.size() + bytes, old_);
    }

    ConstSpan fill(int piece, const Bytes& bytes) {
      const Span span = spans()[static_cast<size_t>(piece)];
      std::copy(bytes.begin(), bytes.end(), static_cast<char*>(span.data));
      return span;
    }

    std::vector<Span> spans() {
      std::vector<Span> all;
      for (const auto& [buffer, begin, bytes] : places_)
        all.push_back({at(buffers_[buffer].data(), begin), bytes});
      return all;
    }
    std::vector<ConstSpan> sources() {
      const std::vector<Span> all = spans();
      return {all.begin(), all.end()};
    }
    Bytes get(int piece) {
      const Span span = spans()[static_cast<size_t>(piece)];
      const char* data = static_cast<const char*>(span.data);
      return {data, data + span.bytes};
    }

   private:
    struct Where {
      size_t buffer, begin, bytes;
    };
    const Player& player_;
    const char old_;
    std::vector<Bytes> buffers_;
    std::vector<Where> places_;
  };

  static const void* out_as(const Bytes& in, Bytes& out) {
    out = in;
    return out.data();
  }

  size_t size(int a, int b) const {
    if (!one_.uneven) return one_.count;
    const uint64_t drawn = hash(one_.seed, 1, static_cast<uint64_t>(a), static_cast<uint64_t>(b));
    return drawn % 3 == 0 ? 0 : drawn / 3 % (2 * one_.count + 1);
  }

  int64_t input(int rank, int piece, size_t i) const {
    const uint64_t drawn = hash(one_.seed, static_cast<uint64_t>(rank), static_cast<uint64_t>(piece), i);
    if (one_.dtype == DType::boolean) return drawn & 1;
    const auto small = static_cast<int64_t>(drawn % 8);
    if (!reduces(one_.op)) return small;
    if (one_.redop == RedOp::product) return 1 + (small & 1);
    if (one_.redop == RedOp::avg) return member_.world * (small - 3);
    if (one_.redop == RedOp::premul_sum) return 2 * (small - 3);
    return small - 3;
  }

  Bytes inputs(int rank, int piece, size_t count) const {
    Bytes bytes(count * element_);
    for (size_t i = 0; i < count; i++) put(one_.dtype, at(bytes.data(), i * element_), input(rank, piece, i));
    return bytes;
  }

  int64_t reduced_at(int piece, size_t i) const {
    int64_t result = 0;
    for (int rank = 0; rank < member_.world; rank++) {
      int64_t value = input(rank, piece, i);
      if (one_.redop == RedOp::premul_sum)
        value = static_cast<int64_t>(static_cast<double>(value) * scale_of(rank));
      result = rank == 0 ? value : joined(result, value);
    }
    return one_.redop == RedOp::avg ? result / member_.world : result;
  }

  int64_t joined(int64_t a, int64_t b) const {
    const bool truth = one_.dtype == DType::boolean;
    switch (one_.redop) {
      case RedOp::product:
        return a * b;
      case RedOp::min:
        return std::min(a, b);
      case RedOp::max:
        return std::max(a, b);
      case RedOp::band:
        return a & b;
      case RedOp::bor:
        return a | b;
      case RedOp::bxor:
        return a ^ b;
      default:
        return truth ? a | b : a + b;
    }
  }

  Bytes reduced(int piece, size_t count) const {
    Bytes bytes(count * element_);
    for (size_t i = 0; i < count; i++) put(one_.dtype, at(bytes.data(), i * element_), reduced_at(piece, i));
    return bytes;
  }

  void compare(const Bytes& found, const Bytes& wanted, const std::string& what) const {
    if (found == wanted) return;
    size_t i = 0;
    while (i < std::min(found.size(), wanted.size()) && found[i] == wanted[i]) i++;
    const std::string title = member_.title + ", call " + std::to_string(member_.seq) + ": " + name_of(one_);
    check(false, title + ": " + what + " is wrong from byte " + std::to_string(i) + " of " +
                     std::to_string(wanted.size()));
  }

  Member& member_;
  const Case& one_;
  const size_t element_;
};

}  // namespace

std::string name_of(const Case& one) {
  std::string text = name_of(one.op);
  text += " of " + std::to_string(one.count) + " " + name_of(one.dtype);
  if (reduces(one.op)) text += std::string(", ") + name_of(one.redop);
  text += ", root " + std::to_string(one.root);
  if (one.in_place) text += ", in place";
  if (one.uneven) text += ", uneven";
  if (one.together) text += ", together";
  return text;
}

void perform(Member& member, const Case& one) { Player(member, one).play(); }

Case random_case(uint64_t seed, int world, size_t most_bytes) {
  const auto draw = [&](uint64_t which, size_t below) -> size_t { return hash(seed, which) % below; };
  Case one;
  one.seed = seed;
  one.op = static_cast<Op>(1 + draw(1, 9));
  one.dtype = kTypes[draw(2, std::size(kTypes))];
  one.redop = redop_for(one.dtype, draw(3, std::size(kOps)));
  one.root = static_cast<int>(draw(4, static_cast<size_t>(world)));
  one.in_place = draw(5, 2) == 1;
  one.uneven = draw(6, 2) == 1 && one.op != Op::gather && one.op != Op::scatter;
  one.together = draw(7, 2) == 1;
  // Small ones are as likely as large ones.
  const size_t most = (most_bytes >> draw(8, 12)) / size_of(one.dtype);
  const bool whole = one.op == Op::allreduce || one.op == Op::reduce || one.op == Op::broadcast;
  one.count = draw(9, most / (whole ? 1 : static_cast<size_t>(world)) + 2);
  return one;
}

}  // namespace plough
