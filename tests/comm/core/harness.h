// What the tests of the core share: named tests, checks, ranks that are threads, hosts that are segments.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives.h"

namespace plough {

// ---- tests ----

struct Test {
  const char* name;
  void (*run)();
};
std::vector<Test>& tests();

#define TEST(name)                                                                \
  static void name();                                                             \
  static const bool name##_listed = (tests().push_back({#name, name}), true);     \
  static void name()

// From any thread. A process that forked calls lost() to know whether to say so to its parent.
void check(bool good, const std::string& what);
int lost();

// How a piece of code ended: kind is "" or the name of the error's type.
struct Outcome {
  std::string kind, text;
  bool says(const std::string& part) const { return text.find(part) != std::string::npos; }
  std::string both() const { return kind.empty() ? "nothing was thrown" : kind + ": " + text; }
};
Outcome outcome_of(std::exception_ptr error);
Outcome outcome_of(const std::function<void()>& code);
void check_kind(const Outcome& outcome, const std::string& kind, const std::string& what);
// One learned of it first; who began later heard that the group is broken. Both heard the same words.
void check_told(const std::vector<Outcome>& outcomes, const std::string& kind, const std::string& what);
void check_says(const Outcome& outcome, const std::string& part, const std::string& what);

// The same in every rank, which is how they agree on what to do.
uint64_t hash(uint64_t a, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0);

// The child ends with us. Ends the program if there is no child: a signal to "process -1" goes to everybody.
int fork_or_end();

void sleep_ms(int ms);
double seconds_since(Clock::time_point start);

// ---- ranks ----

// Small windows and chunks, so that small inputs take every path.
Tuning small_tuning();

struct Setup {
  std::vector<int> host_of;  // by rank
  Reach reach = Reach::slots;
  Tuning tuning = small_tuning();
  size_t slot_bytes = 4096;
};
const char* name_of(Reach reach);
std::string name_of(const Setup& setup);
std::vector<Place> places_of(const std::vector<int>& host_of);

// A rank: what the body of a test gets.
struct Member {
  std::unique_ptr<Collectives> ccl;
  int rank = 0, world = 0;
  uint64_t seq = 0;
  std::string title;  // for messages

  Turn turn(int timeout_ms = 120000) {
    const std::chrono::milliseconds timeout(timeout_ms);
    return {++seq, timeout, Clock::now() + timeout};
  }
  Group& group() { return ccl->group(); }
  void leave() { ccl.reset(); }
};

// Every rank in a thread of its own, all in one mapping of the memory of their host. How each ended.
std::vector<Outcome> run_ranks(const Setup& setup, const std::function<void(Member&)>& body);
void run_well(const Setup& setup, const std::function<void(Member&)>& body);

}  // namespace plough
