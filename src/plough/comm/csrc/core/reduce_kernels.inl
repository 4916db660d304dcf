// The loops of reduce(), written for the compiler to vectorise. Included once per instruction set, inside an
// anonymous namespace: an inline function with a name of its own would be compiled for each of them, and the
// linker would keep any one, maybe the one that this machine cannot run. For the same reason nothing here
// calls functions of the standard library that the compiler may leave out of line.
//
// Needs -ffp-contract=off: with fused multiply-adds the bits would differ between instruction sets.

// Iterations do not depend on each other, even where `out` is one of the sources. Without this the compiler
// would ask at run time whether they are the same memory and, if so, go one element at a time.
#if defined(__clang__)
#define PLOUGH_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define PLOUGH_INDEPENDENT _Pragma("GCC ivdep")
#else
#define PLOUGH_INDEPENDENT
#endif

// Through memcpy, since tensors may lie at any address.
template <class T>
inline T get(const void* base, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
inline void put(void* base, size_t index, T value) {
  std::memcpy(static_cast<char*>(base) + index * sizeof(T), &value, sizeof(T));
}

template <class To, class From>
inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

// Which NaN comes out depends on the processor and on how the compiler ordered the operands: make it one.
inline float settled(float value) {
  return bits_as<float>(value == value ? bits_as<uint32_t>(value) : 0x7fc00000u);
}
inline double settled(double value) {
  return bits_as<double>(value == value ? bits_as<uint64_t>(value) : 0x7ff8000000000000u);
}
template <class A>
inline A settled(A value) {
  return value;
}

// Elements: the Word of memory that is handled at a time, and what it is reduced in. ----------------------

template <class T>
struct Number {
  using Element = T;
  using Word = T;
  using Acc = T;
  static Acc load(Word word) { return word; }
  static Word store(Acc value) { return settled(value); }
};

struct Boolean {
  using Element = uint8_t;
  using Word = uint8_t;
  using Acc = uint8_t;
  static Acc load(Word word) { return word != 0; }
  static Word store(Acc value) { return value; }
};

// Elements of 16 bits go two at a time: everything then happens in lanes of 32 bits, and no instruction is
// spent on spreading and gathering them. Which of the two comes first in memory does not matter.
struct Pair {
  float low, high;
};

struct Bfloat16 {
  using Element = uint16_t;
  using Word = uint32_t;
  using Acc = Pair;
  static Acc load(Word word) { return {bits_as<float>(word << 16), bits_as<float>(word & 0xffff0000u)}; }
  static Word store(Acc value) { return rounded(value.low) >> 16 | (rounded(value.high) & 0xffff0000u); }

  // To nearest even, in the upper half. The settled NaN survives it, others might not.
  static uint32_t rounded(float value) {
    const uint32_t bits = bits_as<uint32_t>(settled(value));
    return bits + 0x7fff + (bits >> 16 & 1);
  }
};

// value < limit ? yes : no, for what is not negative. Behind `?:` the compiler would put floating point
// arithmetic into a branch, and not vectorise.
inline int32_t below(int32_t value, int32_t limit, int32_t yes, int32_t no) {
  const int32_t mask = (value - limit) >> 31;
  return (yes & mask) | (no & ~mask);
}

// All cases are computed and one is taken, see below().
struct Float16 {
  using Element = uint16_t;
  using Word = uint32_t;
  using Acc = Pair;
  static Acc load(Word word) { return {widened(word << 16), widened(word & 0xffff0000u)}; }
  static Word store(Acc value) { return narrowed(value.low) | narrowed(value.high) << 16; }

  static float widened(uint32_t upper) {
    const int32_t rebias = (127 - 15) << 23;
    const int32_t magnitude = static_cast<int32_t>(upper & 0x7fff0000u) >> 3;
    const int32_t normal = magnitude + rebias;
    const int32_t special = normal + rebias;    // infinities and NaNs
    const int32_t one_up = normal + (1 << 23);  // subnormals: give it a leading one, take it away again
    const int32_t tiny = bits_as<int32_t>(bits_as<float>(one_up) - bits_as<float>(rebias + (1 << 23)));
    const int32_t finite = below(magnitude, 1 << 23, tiny, normal);
    const int32_t result = below(magnitude, 31 << 23, finite, special);
    return bits_as<float>(static_cast<uint32_t>(result) | (upper & 0x80000000u));
  }

  // To nearest even.
  static uint32_t narrowed(float value) {
    const int32_t bits = bits_as<int32_t>(value);
    const int32_t magnitude = bits & 0x7fffffff;
    const int32_t sign = bits >> 16 & 0x8000;
    const int32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    // Adding a half leaves the wanted bits, rounded, at the low end.
    const int32_t tiny = bits_as<int32_t>(bits_as<float>(magnitude) + 0.5f) - bits_as<int32_t>(0.5f);
    const int32_t finite = below(magnitude, (127 - 14) << 23, tiny, normal);
    const int32_t number = sign | below(magnitude, (127 + 16) << 23, finite, 0x7c00);
    return static_cast<uint32_t>(below(255 << 23, magnitude, 0x7e00, number));  // the one NaN, see settled()
  }
};

// Operations. Integers come as unsigned ones wherever they may wrap. ------------------------------------

struct Sum {
  template <class A>
  static A of(A a, A b) {
    return static_cast<A>(a + b);
  }
};

struct Product {
  template <class A>
  static A of(A a, A b) {
    // 16 bits would become a signed int, and overflow.
    using Wide = typename std::conditional<std::is_integral<A>::value && sizeof(A) < 4, uint32_t, A>::type;
    return static_cast<A>(static_cast<Wide>(a) * static_cast<Wide>(b));
  }
};

// `|`, not `||`: no branch. Of equals (zeros of either sign) the earlier source stays.
struct Min {
  template <class A>
  static A of(A a, A b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};

struct Max {
  template <class A>
  static A of(A a, A b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};

struct And {
  template <class A>
  static A of(A a, A b) {
    return static_cast<A>(a & b);
  }
};

struct Or {
  template <class A>
  static A of(A a, A b) {
    return static_cast<A>(a | b);
  }
};

struct Xor {
  template <class A>
  static A of(A a, A b) {
    return static_cast<A>(a ^ b);
  }
};

// What is done to an element before it is reduced, or to the result. -----------------------------------

struct AsIs {
  explicit AsIs(double) {}
  template <class A>
  A operator()(A value) const {
    return value;
  }
};

template <class A>
struct Times {
  A factor;
  explicit Times(double by) : factor(static_cast<A>(by)) {}
  A operator()(A value) const { return value * factor; }
};

template <class A>
struct Over {
  A divisor;
  explicit Over(double by) : divisor(static_cast<A>(by)) {}
  A operator()(A value) const { return value / divisor; }
};

// Towards zero; what does not fit becomes the nearest that does, and NaN zero, where C++ promises nothing.
template <class T>
inline T truncated(double value) {
  constexpr T least = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
  constexpr double low = static_cast<double>(least), high = static_cast<double>(most);
  if constexpr (sizeof(T) < 8) {
    value = value == value ? value : 0;
    value = value < low ? low : value;
    value = value > high ? high : value;
    return static_cast<T>(value);
  } else {  // here `high` is one more than `most`
    if (value != value) return 0;
    return value <= low ? least : value >= high ? most : static_cast<T>(value);
  }
}

// T is the type that the user sees, A the unsigned one that it is reduced in.
template <class T>
struct IntegerTimes {
  using A = typename std::make_unsigned<T>::type;
  double factor;
  explicit IntegerTimes(double by) : factor(by) {}
  A operator()(A value) const {
    return static_cast<A>(truncated<T>(static_cast<double>(static_cast<T>(value)) * factor));
  }
};

template <class T>
struct IntegerOver {
  using A = typename std::make_unsigned<T>::type;
  double divisor;
  explicit IntegerOver(double by) : divisor(by) {}
  A operator()(A value) const {
    const T dividend = static_cast<T>(value);
    if constexpr (sizeof(T) < 8) {  // 53 bits are enough to truncate as integers would, and this vectorises
      return static_cast<A>(static_cast<T>(static_cast<double>(dividend) / divisor));
    } else {
      return static_cast<A>(dividend / static_cast<T>(divisor));
    }
  }
};

// The same for whatever an element is reduced in.

template <class Op, class A>
inline A combined(A a, A b) {
  return Op::of(a, b);
}
template <class Op>
inline Pair combined(Pair a, Pair b) {
  return {Op::of(a.low, b.low), Op::of(a.high, b.high)};
}

template <class F, class A>
inline A applied(const F& f, A value) {
  return f(value);
}
template <class F>
inline Pair applied(const F& f, Pair value) {
  return {f(value.low), f(value.high)};
}

// What the sources so far come to, for a stretch that stays in the first-level cache.
template <class A>
struct Block {
  static constexpr size_t size = 1024;
  alignas(64) A values[size];
  A get(size_t i) const { return values[i]; }
  void set(size_t i, A value) { values[i] = value; }
};

template <>
struct Block<Pair> {
  static constexpr size_t size = 512;
  alignas(64) float low[size], high[size];
  Pair get(size_t i) const { return {low[i], high[i]}; }
  void set(size_t i, Pair value) { low[i] = value.low, high[i] = value.high; }
};

// The loops. -------------------------------------------------------------------------------------------

// Each on its own: nested, they would be interchanged by the compiler, and several times as slow.
#define PLOUGH_LOOP __attribute__((noinline))

template <class E, class F>
inline typename E::Acc loaded(const void* base, size_t i, const F& before) {
  return applied(before, E::load(get<typename E::Word>(base, i)));
}

template <class E, class F>
inline void stored(void* base, size_t i, typename E::Acc value, const F& after) {
  put<typename E::Word>(base, i, E::store(applied(after, value)));
}

template <class E, class Before, class After>
PLOUGH_LOOP void one(void* out, const void* a, size_t words, Before first, After after) {
  PLOUGH_INDEPENDENT
  for (size_t i = 0; i < words; ++i) stored<E>(out, i, loaded<E>(a, i, first), after);
}

template <class E, class Op, class Before, class After>
PLOUGH_LOOP void two(void* out, const void* a, const void* b, size_t words, Before first, Before second,
                     After after) {
  PLOUGH_INDEPENDENT
  for (size_t i = 0; i < words; ++i) {
    stored<E>(out, i, combined<Op>(loaded<E>(a, i, first), loaded<E>(b, i, second)), after);
  }
}

template <class E, class Op, class Before>
PLOUGH_LOOP void begin(Block<typename E::Acc>& acc, const void* a, const void* b, size_t words, Before first,
                       Before second) {
  PLOUGH_INDEPENDENT
  for (size_t i = 0; i < words; ++i) {
    acc.set(i, combined<Op>(loaded<E>(a, i, first), loaded<E>(b, i, second)));
  }
}

template <class E, class Op, class Before>
PLOUGH_LOOP void go_on(Block<typename E::Acc>& acc, const void* c, size_t words, Before before) {
  PLOUGH_INDEPENDENT
  for (size_t i = 0; i < words; ++i) acc.set(i, combined<Op>(acc.get(i), loaded<E>(c, i, before)));
}

template <class E, class Op, class Before, class After>
PLOUGH_LOOP void end(void* out, const Block<typename E::Acc>& acc, const void* z, size_t words, Before last,
                     After after) {
  PLOUGH_INDEPENDENT
  for (size_t i = 0; i < words; ++i) {
    stored<E>(out, i, combined<Op>(acc.get(i), loaded<E>(z, i, last)), after);
  }
}

// The last element, where two make a word.
template <class E, class Op, class Before, class After>
PLOUGH_LOOP void odd_one(const Reduction& r, After after) {
  using Element = typename E::Element;
  const size_t i = r.count - 1;
  const auto source = [&](int k) {
    const typename E::Word word = get<Element>(r.srcs[k], i);
    return applied(Before(r.scales ? r.scales[k] : 1), E::load(word));
  };
  auto acc = source(0);
  for (int k = 1; k < r.n; ++k) acc = combined<Op>(acc, source(k));
  put<Element>(r.out, i, static_cast<Element>(E::store(applied(after, acc))));
}

template <class E, class Op, class Before, class After>
void run(const Reduction& r, double by = 1) {
  using Word = typename E::Word;
  using Accs = Block<typename E::Acc>;
  constexpr size_t elements = sizeof(Word) / sizeof(typename E::Element);
  const auto before = [&r](int k) { return Before(r.scales ? r.scales[k] : 1); };
  const After after(by);
  const size_t words = r.count / elements;

  if (r.n == 1) {
    one<E>(r.out, r.srcs[0], words, before(0), after);
  } else if (r.n == 2) {
    two<E, Op>(r.out, r.srcs[0], r.srcs[1], words, before(0), before(1), after);
  } else {
    // A block of all sources is read before any of it is written, so `out` may be one of them.
    Accs acc;
    const int last = r.n - 1;
    for (size_t start = 0; start < words; start += Accs::size) {
      const size_t size = words - start < Accs::size ? words - start : Accs::size;
      const size_t offset = start * sizeof(Word);
      begin<E, Op>(acc, at(r.srcs[0], offset), at(r.srcs[1], offset), size, before(0), before(1));
      for (int k = 2; k < last; ++k) go_on<E, Op>(acc, at(r.srcs[k], offset), size, before(k));
      end<E, Op>(at(r.out, offset), acc, at(r.srcs[last], offset), size, before(last), after);
    }
  }
  if constexpr (elements == 2) {
    if (r.count % 2 != 0) odd_one<E, Op, Before>(r, after);
  }
}

template <class E, class Op>
void run_plain(const Reduction& r) {
  run<E, Op, AsIs, AsIs>(r);
}

// Which loop. ------------------------------------------------------------------------------------------

// A: what one element is reduced in.
template <class E, class A>
void run_floating(const Reduction& r) {
  switch (r.op) {
    case RedOp::sum:
      return run_plain<E, Sum>(r);
    case RedOp::avg:
      return r.reciprocal != 0 ? run<E, Sum, AsIs, Times<A>>(r, r.reciprocal)
                               : run<E, Sum, AsIs, Over<A>>(r, r.divisor);
    case RedOp::premul_sum:
      return run<E, Sum, Times<A>, AsIs>(r);
    case RedOp::product:
      return run_plain<E, Product>(r);
    case RedOp::min:
      return run_plain<E, Min>(r);
    case RedOp::max:
      return run_plain<E, Max>(r);
    default:
      return;
  }
}

// Signed and unsigned share what they can: it halves the code.
template <class T>
void run_integer(const Reduction& r) {
  using U = typename std::make_unsigned<T>::type;
  switch (r.op) {
    case RedOp::sum:
      return run_plain<Number<U>, Sum>(r);
    case RedOp::avg:
      return run<Number<U>, Sum, AsIs, IntegerOver<T>>(r, r.divisor);
    case RedOp::premul_sum:
      return run<Number<U>, Sum, IntegerTimes<T>, AsIs>(r);
    case RedOp::product:
      return run_plain<Number<U>, Product>(r);
    case RedOp::min:
      return run_plain<Number<T>, Min>(r);
    case RedOp::max:
      return run_plain<Number<T>, Max>(r);
    case RedOp::band:
      return run_plain<Number<U>, And>(r);
    case RedOp::bor:
      return run_plain<Number<U>, Or>(r);
    case RedOp::bxor:
      return run_plain<Number<U>, Xor>(r);
  }
}

inline void run_boolean(const Reduction& r) {
  switch (r.op) {
    case RedOp::sum:
    case RedOp::max:
    case RedOp::bor:
      return run_plain<Boolean, Or>(r);
    case RedOp::product:
    case RedOp::min:
    case RedOp::band:
      return run_plain<Boolean, And>(r);
    case RedOp::bxor:
      return run_plain<Boolean, Xor>(r);
    default:
      return;
  }
}

void run_kernel(const Reduction& r) {
  switch (r.dtype) {
    case DType::u8:
      return run_integer<uint8_t>(r);
    case DType::i8:
      return run_integer<int8_t>(r);
    case DType::i16:
      return run_integer<int16_t>(r);
    case DType::i32:
      return run_integer<int32_t>(r);
    case DType::i64:
      return run_integer<int64_t>(r);
    case DType::u16:
      return run_integer<uint16_t>(r);
    case DType::u32:
      return run_integer<uint32_t>(r);
    case DType::u64:
      return run_integer<uint64_t>(r);
    case DType::f16:
      return run_floating<Float16, float>(r);
    case DType::bf16:
      return run_floating<Bfloat16, float>(r);
    case DType::f32:
      return run_floating<Number<float>, float>(r);
    case DType::f64:
      return run_floating<Number<double>, double>(r);
    case DType::boolean:
      return run_boolean(r);
  }
}
