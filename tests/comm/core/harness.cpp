// Runs the tests named on the command line, or lists them with --list.
#include "harness.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "memory_link.h"

namespace plough {
namespace {

std::atomic<int> failures{0};

}  // namespace

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

void check(bool good, const std::string& what) {
  if (good) return;
  // The first few tell what is wrong; thousands would only hide it.
  if (++failures <= 20) std::printf("FAILED: %s\n", what.c_str()), std::fflush(stdout);
}

int lost() { return failures; }

Outcome outcome_of(std::exception_ptr error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const TimedOut& caught) {
    return {"TimedOut", caught.what()};
  } catch (const PeerLost& caught) {
    return {"PeerLost", caught.what()};
  } catch (const Mismatch& caught) {
    return {"Mismatch", caught.what()};
  } catch (const Unsupported& caught) {
    return {"Unsupported", caught.what()};
  } catch (const Broken& caught) {
    return {"Broken", caught.what()};
  } catch (const Error& caught) {
    return {"Error", caught.what()};
  } catch (const std::exception& caught) {
    return {"std::exception", caught.what()};
  }
}

Outcome outcome_of(const std::function<void()>& code) {
  try {
    code();
  } catch (...) {
    return outcome_of(std::current_exception());
  }
  return {};
}

void check_kind(const Outcome& outcome, const std::string& kind, const std::string& what) {
  const std::string wanted = kind.empty() ? "no error" : kind;
  check(outcome.kind == kind, what + ": wanted " + wanted + ", but " + outcome.both());
}

void check_told(const std::vector<Outcome>& outcomes, const std::string& kind, const std::string& what) {
  bool first = false;
  for (const Outcome& outcome : outcomes) {
    first = first || outcome.kind == kind;
    check_kind(outcome, outcome.kind == "Broken" ? "Broken" : kind, what);
  }
  check(first, what + ": nobody was told " + kind);
}

void check_says(const Outcome& outcome, const std::string& part, const std::string& what) {
  check(outcome.says(part), what + ": \"" + part + "\" is not in: " + outcome.both());
}

uint64_t hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t value = 0x9e3779b97f4a7c15;
  for (const uint64_t word : {a, b, c, d}) {
    value = (value ^ word) * 0xff51afd7ed558ccd;
    value ^= value >> 32;
  }
  return value;
}

int fork_or_end() {
  const int pid = fork();
  if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (pid >= 0) return pid;
  std::perror("fork");
  std::_Exit(1);
}

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Tuning small_tuning() {
  Tuning tuning;
  tuning.patience = {std::chrono::microseconds(2), std::chrono::microseconds(100)};
  tuning.one_shot_bytes = 512;
  tuning.chunk_bytes = 1024;
  return tuning;
}

const char* name_of(Reach reach) {
  return reach == Reach::slots ? "slots" : reach == Reach::kernel ? "kernel" : "direct";
}

std::string name_of(const Setup& setup) {
  std::string text = std::string(name_of(setup.reach)) + ", hosts of the ranks";
  for (const int host : setup.host_of) text += " " + std::to_string(host);
  return text;
}

std::vector<Place> places_of(const std::vector<int>& host_of) {
  std::vector<Place> places;
  for (size_t rank = 0; rank < host_of.size(); rank++) {
    int index = 0;
    for (size_t before = 0; before < rank; before++) index += host_of[before] == host_of[rank];
    places.push_back({host_of[rank], index});
  }
  return places;
}

std::vector<Outcome> run_ranks(const Setup& setup, const std::function<void(Member&)>& body) {
  const std::vector<Place> places = places_of(setup.host_of);
  const int world = static_cast<int>(places.size());
  std::vector<int> sizes;
  for (const Place& place : places) {
    if (static_cast<size_t>(place.host) >= sizes.size()) sizes.resize(static_cast<size_t>(place.host) + 1);
    sizes[static_cast<size_t>(place.host)]++;
  }
  std::vector<std::shared_ptr<Segment>> segments;
  for (const int size : sizes) segments.push_back(Segment::create(size, world, setup.slot_bytes, "test"));
  const auto hub = std::make_shared<Hub>(static_cast<int>(sizes.size()));
  std::vector<Outcome> outcomes(places.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; rank++) {
    threads.emplace_back([&, rank] {
      outcomes[static_cast<size_t>(rank)] = outcome_of([&] {
        const Place place = places[static_cast<size_t>(rank)];
        const auto& segment = segments[static_cast<size_t>(place.host)];
        const std::string host = "host" + std::to_string(place.host);
        std::unique_ptr<Group> group(new Group(segment, place.index, rank, host, setup.reach, setup.tuning));
        group->meet(Clock::now() + std::chrono::seconds(60));
        std::unique_ptr<Link> link;
        if (sizes.size() > 1 && group->leads()) link.reset(new MemoryLink(hub, place.host));
        Member member;
        member.ccl.reset(new Collectives(std::move(group), std::move(link), places, rank));
        member.rank = rank, member.world = world;
        member.title = name_of(setup) + ", rank " + std::to_string(rank);
        body(member);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

void run_well(const Setup& setup, const std::function<void(Member&)>& body) {
  const std::vector<Outcome> outcomes = run_ranks(setup, body);
  for (size_t rank = 0; rank < outcomes.size(); rank++)
    check_kind(outcomes[rank], "", name_of(setup) + ", rank " + std::to_string(rank));
}

}  // namespace plough

// What a collective that fails leaves behind on purpose: see scratch.h.
extern "C" const char* __lsan_default_suppressions() { return "leak:plough::Scratch::Scratch\n"; }

int main(int argc, char** argv) {
  using namespace plough;
  for (int i = 1; i < argc; i++) {
    bool found = std::strcmp(argv[i], "--list") == 0;
    for (const Test& test : tests()) {
      if (std::strcmp(argv[i], "--list") == 0) std::printf("%s\n", test.name);
      if (std::strcmp(argv[i], test.name) != 0) continue;
      found = true;
      test.run();
    }
    check(found, std::string("there is no test ") + argv[i]);
  }
  if (lost() > 20) std::printf("... and %d more\n", lost() - 20);
  return lost() == 0 ? 0 : 1;
}
