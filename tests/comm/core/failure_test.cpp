// What goes wrong, goes wrong for every rank, soon, and with words that say who and what.
#include <sys/mman.h>

#include <thread>

#include "cases.h"

namespace plough {
namespace {

// Rank 1 does something else than the others. Buffers outlive the ranks: who fails may be read from until
// the others know.
struct Deviation {
  const char* name;
  std::function<void(Member&, bool deviates, char* memory)> call;
  bool everybody = true;  // finds out at once; else some do, and the others in their next call
};

const Reduction kSum{DType::f32, RedOp::sum};

std::vector<Span> spans(char* memory, int count, size_t bytes) {
  std::vector<Span> all;
  for (int i = 0; i < count; i++) all.push_back({memory + static_cast<size_t>(i) * 4096, bytes});
  return all;
}
std::vector<ConstSpan> sources(char* memory, int count, size_t bytes) {
  const auto all = spans(memory, count, bytes);
  return {all.begin(), all.end()};
}

std::vector<Deviation> deviations(size_t bytes) {
  const auto count = bytes / 4;
  const DType f32 = DType::f32;
  constexpr size_t kOut = 128 << 10;
  return {
      {"operation",
       [=](Member& m, bool other, char* memory) {
         if (other) return m.ccl->barrier(m.turn());
         m.ccl->allreduce(m.turn(), memory, memory, count, kSum);
       }},
      {"type",
       [=](Member& m, bool other, char* memory) {
         m.ccl->allreduce(m.turn(), memory, memory, count, {other ? DType::i32 : f32, RedOp::sum});
       }},
      {"reduction",
       [=](Member& m, bool other, char* memory) {
         m.ccl->reduce_scatter(m.turn(), sources(memory, m.world, bytes), memory + kOut,
                               {f32, other ? RedOp::max : RedOp::sum});
       }},
      {"size of allreduce",
       [=](Member& m, bool other, char* memory) {
         m.ccl->allreduce(m.turn(), memory, memory, count + other, kSum);
       }},
      {"size on both sides of the one-shot limit",
       [=](Member& m, bool other, char* memory) {
         m.ccl->allreduce(m.turn(), memory, memory, other ? 2 : 6000, kSum);
       }},
      {"size of reduce",
       [=](Member& m, bool other, char* memory) {
         m.ccl->reduce(m.turn(), memory, memory + kOut, count + other, kSum, 0);
       }},
      {"size of broadcast",
       [=](Member& m, bool other, char* memory) {
         m.ccl->broadcast(m.turn(), f32, {memory, bytes + other}, 0);
       }},
      {"root of broadcast",
       [=](Member& m, bool other, char* memory) {
         m.ccl->broadcast(m.turn(), f32, {memory, bytes}, other ? 1 : 0);
       }},
      {"root of reduce",
       [=](Member& m, bool other, char* memory) {
         m.ccl->reduce(m.turn(), memory, memory + kOut, count, kSum, other ? 1 : 0);
       }},
      {"root of gather",
       [=](Member& m, bool other, char* memory) {
         m.ccl->gather(m.turn(), f32, {memory + kOut, bytes}, spans(memory, m.world, bytes), other ? 1 : 0);
       }},
      {"size of allgather",
       [=](Member& m, bool other, char* memory) {
         const size_t own = bytes + other;
         m.ccl->allgather(m.turn(), f32, {memory + kOut, own}, spans(memory, m.world, own), true);
       }},
      {"size of gather",
       [=](Member& m, bool other, char* memory) {
         const size_t own = bytes + other;
         m.ccl->gather(m.turn(), f32, {memory + kOut, own}, spans(memory, m.world, own), 0);
       }},
      {"size of scatter",
       [=](Member& m, bool other, char* memory) {
         const size_t own = bytes + other;
         m.ccl->scatter(m.turn(), f32, sources(memory, m.world, own), {memory + kOut, own}, 0);
       }},
      {"number of the call",
       [=](Member& m, bool other, char*) {
         if (other) m.turn();
         m.ccl->barrier(m.turn());
       }},
      {"a piece of uneven allgather",
       [=](Member& m, bool other, char* memory) {
         auto outs = spans(memory, m.world, bytes);
         if (other) outs[0].bytes += 4;
         m.ccl->allgather(m.turn(), f32, {memory + kOut, bytes}, outs, false);
       },
       false},
      {"a piece of reduce_scatter",
       [=](Member& m, bool other, char* memory) {
         auto ins = sources(memory, m.world, bytes);
         if (other) ins[0].bytes -= 4, ins[1].bytes += 4;  // together as much as the others
         m.ccl->reduce_scatter(m.turn(), ins, memory + kOut, kSum);
       },
       false},
      {"a piece of alltoall",
       [=](Member& m, bool other, char* memory) {
         auto outs = spans(memory + kOut, m.world, bytes);
         if (other) outs[2].bytes -= 4;
         m.ccl->alltoall(m.turn(), f32, sources(memory, m.world, bytes), outs);
       },
       false},
  };
}

void check_deviations(const Setup& setup, bool between_hosts) {
  for (const size_t bytes : {200, 3000}) {
    for (const Deviation& deviation : deviations(bytes)) {
      std::vector<std::vector<char>> memory(setup.host_of.size(), std::vector<char>(256 << 10));
      std::vector<Outcome> first(setup.host_of.size());
      std::atomic<int> done{0};
      run_well(setup, [&](Member& member) {
        const std::string title = std::string("different ") + deviation.name + ", " + member.title;
        char* own = memory[static_cast<size_t>(member.rank)].data();
        Outcome& outcome = first[static_cast<size_t>(member.rank)];
        member.ccl->barrier(member.turn());
        // Between hosts all ranks of the second one, who agree with each other.
        const bool deviates = between_hosts ? member.rank % 2 == 1 : member.rank == 1;
        outcome = outcome_of([&] { deviation.call(member, deviates, own); });
        // A rank that noticed nothing must not leave before the others have.
        done++;
        while (done < member.world) sleep_ms(1);
        const Outcome later = outcome_of([&] { member.ccl->barrier(member.turn()); });
        // On another host nobody may have noticed until it is gone.
        if (!between_hosts || later.kind != "PeerLost") check_kind(later, "Broken", title + ", afterwards");
      });
      const std::string named = std::string("different ") + deviation.name + ", " + name_of(setup);
      int noticed = 0;
      for (size_t rank = 0; rank < first.size(); rank++) {
        const std::string title = named + ", rank " + std::to_string(rank);
        const bool must = deviation.everybody && !between_hosts;
        // Whose leader failed already was not even let in.
        const bool late = between_hosts && first[rank].kind == "Broken";
        if (must || (!first[rank].kind.empty() && !late)) check_kind(first[rank], "Mismatch", title);
        noticed += first[rank].kind == "Mismatch";
        if (must) check_says(first[rank], "ranks called different things: rank ", title);
      }
      check(noticed > 0, named + ": nobody noticed");
    }
  }
}

TEST(mismatch_on_one_host) {
  for (const Reach reach : {Reach::slots, Reach::direct}) check_deviations({{0, 0, 0}, reach}, false);
}

TEST(mismatch_between_hosts) {
  for (const Reach reach : {Reach::slots, Reach::direct}) check_deviations({{0, 1, 0, 1}, reach}, true);
}

TEST(mismatch_says_what) {
  run_well({{0, 0}}, [](Member& member) {
    std::vector<float> data(100);
    const Outcome outcome = outcome_of([&] {
      if (member.rank == 1) return member.ccl->broadcast(member.turn(), DType::f32, {data.data(), 400}, 1);
      member.ccl->allreduce(member.turn(), data.data(), data.data(), 100, {DType::bf16, RedOp::max});
    });
    check_kind(outcome, "Mismatch", member.title);
    check_says(outcome, "on host0): all_reduce #1 (max, 200 bytes of bfloat16)", member.title);
    check_says(outcome, "on host0): broadcast #1 (400 bytes of float32, root 1)", member.title);
    const Outcome later = outcome_of([&] { member.ccl->barrier(member.turn()); });
    check_kind(later, "Broken", member.title);
    check_says(later, "this group failed before and cannot be used any more: ranks called", member.title);
  });
}

// ---- ranks that do not come ----

TEST(timeout_names_who_is_late) {
  for (const Reach reach : {Reach::slots, Reach::direct}) {
    for (const size_t count : {10, 5000}) {
      const Setup setup{{0, 0, 0, 0}, reach};
      std::vector<std::vector<float>> memory(4, std::vector<float>(count));
      std::vector<Outcome> told(2);
      run_well(setup, [&](Member& member) {
        float* data = memory[static_cast<size_t>(member.rank)].data();
        member.ccl->allreduce(member.turn(), data, data, count, kSum);
        member.ccl->barrier(member.turn());
        // Two are late: one is named for whoever waits for the other.
        if (member.rank == 0 || member.rank == 2) {
          while (!member.group().failed()) sleep_ms(1);
          return;
        }
        const auto start = Clock::now();
        const Outcome outcome =
            outcome_of([&] { member.ccl->allreduce(member.turn(300), data, data, count, kSum); });
        check(seconds_since(start) < 20, member.title + ": at its deadline");
        told[static_cast<size_t>(member.rank / 2)] = outcome;
        check_says(outcome, "all_reduce #3 timed out after 0.3 s: rank ", member.title);
        check_says(outcome, "did not come: its last was barrier #2", member.title);
        for (const char* late : {"rank 0 (process ", "rank 2 (process "})
          check_says(outcome, late, member.title);
        for (const char* came : {"rank 1 (", "rank 3 ("})
          check(!outcome.says(came), member.title + ": " + came + " came, but " + outcome.text);
        check_kind(outcome_of([&] { member.ccl->barrier(member.turn()); }), "Broken", member.title);
      });
      check_told(told, "TimedOut", "two are late");
    }
  }
}

TEST(timeout_of_who_never_called) {
  run_well({{0, 0}}, [](Member& member) {
    if (member.rank == 1) {
      while (!member.group().failed()) sleep_ms(1);
      return;
    }
    const Outcome outcome = outcome_of([&] { member.ccl->barrier(member.turn(200)); });
    check_kind(outcome, "TimedOut", member.title);
    check_says(outcome, "barrier #1 timed out after 0.2 s: rank 1", member.title);
    check_says(outcome, "it has not called any collective yet", member.title);
  });
}

TEST(timeout_of_who_never_joined) {
  const auto segment = Segment::create(2, 2, 4096, "test");
  Group group(segment, 0, 0, "host0", Reach::slots, small_tuning());
  const Outcome outcome = outcome_of([&] { group.meet(Clock::now() + std::chrono::milliseconds(100)); });
  check_kind(outcome, "TimedOut", "meet");
  check_says(outcome, "the rank with local index 1 did not come to form the group", "meet");
}

// A late rank that is late by less than the timeout harms nobody.
TEST(late_but_in_time) {
  run_well({{0, 1, 0, 1}}, [](Member& member) {
    for (int i = 0; i < 8; i++) {
      if (i % 4 == member.rank) sleep_ms(60);
      member.ccl->barrier(member.turn());
    }
  });
}

// The leader waits for the other host; the ranks of its own must hear its words, not blame it.
TEST(timeout_between_hosts) {
  std::vector<Outcome> told(2);
  std::atomic<int> done{0};
  run_well({{0, 1, 0, 1}}, [&](Member& member) {
    std::vector<float> data(1000);
    member.ccl->allreduce(member.turn(), data.data(), data.data(), 1000, kSum);
    while (member.rank % 2 == 1 && done < 2) sleep_ms(1);
    if (member.rank % 2 == 1) return;
    const Outcome outcome = outcome_of([&] {
      member.ccl->allreduce(member.turn(300), data.data(), data.data(), 1000, kSum);
    });
    done++;
    told[static_cast<size_t>(member.rank / 2)] = outcome;
    check_says(outcome, "all_reduce #2 timed out: host 1 did not come", member.title);
  });
  check_told(told, "TimedOut", "another host is late");
}

TEST(link_failure_is_explained) {
  run_well({{0, 1, 0}}, [](Member& member) {
    if (member.rank == 1) return;
    if (member.rank == 0) sleep_ms(20);  // else it might be heard of before rank 2 begins
    member.ccl->on_link_failure([](const std::string& text) { return "The network says: " + text; });
    const Outcome outcome = outcome_of([&] { member.ccl->barrier(member.turn()); });
    check_kind(outcome, "PeerLost", member.title);
    check_says(outcome, "The network says: host 1 is gone", member.title);
  });
}

// ---- ranks that go ----

TEST(rank_that_leaves) {
  for (const Reach reach : {Reach::slots, Reach::direct}) {
    std::vector<std::vector<float>> memory(3, std::vector<float>(5000));
    std::vector<Outcome> told(2);
    run_well({{0, 0, 0}, reach}, [&](Member& member) {
      float* data = memory[static_cast<size_t>(member.rank)].data();
      member.ccl->allreduce(member.turn(), data, data, 5000, kSum);
      if (member.rank == 2) return member.leave();
      const auto start = Clock::now();
      const Outcome outcome =
          outcome_of([&] { member.ccl->allreduce(member.turn(), data, data, 5000, kSum); });
      check(seconds_since(start) < 20, member.title + ": long before its deadline");
      told[static_cast<size_t>(member.rank)] = outcome;
      check_says(outcome, "rank 2 (process ", member.title);
      check_says(outcome, "has left the group; all_reduce #2 cannot be finished", member.title);
    });
    check_told(told, "PeerLost", "one has left");
  }
}

// Leaving right after the last collective is how every job ends.
TEST(leaving_after_the_last) {
  for (uint64_t again = 0; again < 300; again++)
    run_well({{0, 0, 0}, again % 2 == 0 ? Reach::slots : Reach::direct}, [=](Member& member) {
      perform(member, random_case(hash(30, again), member.world, 5000));
    });
}

// Only the root's memory is read, and only by the others.
TEST(unreadable_memory) {
  void* memory = mmap(nullptr, 100000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  run_well({{0, 0, 0}, Reach::kernel}, [=](Member& member) {
    std::vector<char> data(100000);
    const Span span{member.rank == 0 ? memory : data.data(), 100000};
    const Outcome outcome = outcome_of([&] { member.ccl->broadcast(member.turn(), DType::u8, span, 0); });
    check_kind(outcome, "Error", member.title);
    check_says(outcome, "broadcast #1 failed: cannot read the memory of process ", member.title);
  });
  munmap(memory, 100000);
}

// Of many failures at once, one is what all ranks are told.
TEST(one_failure_for_all) {
  for (int again = 0; again < 50; again++) {
    std::vector<Outcome> outcomes(4);
    run_well({{0, 0, 0, 0}}, [&](Member& member) {
      Outcome& own = outcomes[static_cast<size_t>(member.rank)];
      const std::string words = "rank " + std::to_string(member.rank) + " fails";
      own = outcome_of([&] { member.group().fail(Failure::other, words); });
    });
    for (const Outcome& outcome : outcomes) {
      check_kind(outcome, "Error", "fail");
      check(outcome.text == outcomes[0].text, "not one failure: " + outcomes[0].text + "; " + outcome.text);
    }
  }
}

TEST(long_words_are_cut) {
  run_well({{0}}, [](Member& member) {
    const std::string words(5000, 'x');
    const Outcome outcome = outcome_of([&] { member.group().fail(Failure::unsupported, words); });
    check_kind(outcome, "Unsupported", member.title);
    check(outcome.text == std::string(kTextBytes - 1, 'x'), member.title + ": cut, and ended");
  });
}

// Helpers work for the rank: what they meet is thrown where the rank is.
TEST(failure_with_workers) {
  Setup setup{{0, 0, 0}, Reach::direct};
  setup.tuning.workers = 3;
  std::vector<std::vector<float>> memory(3, std::vector<float>(60000));
  run_well(setup, [&](Member& member) {
    float* data = memory[static_cast<size_t>(member.rank)].data();
    for (int i = 0; member.rank != 2 || i < 5; i++) {
      const Outcome outcome =
          outcome_of([&] { member.ccl->allreduce(member.turn(300), data, data, 60000, kSum); });
      if (outcome.kind.empty()) continue;
      check_kind(outcome, "TimedOut", member.title);
      return;
    }
    while (!member.group().failed()) sleep_ms(1);
  });
}

}  // namespace
}  // namespace plough
