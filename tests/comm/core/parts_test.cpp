// What the collectives are made of: where things lie, the helper threads, waiting, watching a process.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <thread>

#include "harness.h"
#include "waiting.h"

namespace plough {
namespace {

// ---- layout ----

struct Extent {
  std::string what;
  size_t begin, end;
};

std::vector<Extent> extents(const Layout& layout, int ranks) {
  std::vector<Extent> all = {{"header", 0, sizeof(Header)}};
  const auto add = [&](const std::string& what, size_t begin, size_t bytes) {
    check(begin % kLine == 0, what + " does not begin on a line");
    all.push_back({what, begin, begin + bytes});
  };
  for (int i = 0; i < ranks; i++) {
    const std::string of = " of rank " + std::to_string(i);
    add("state" + of, layout.state(i), sizeof(RankState));
    add("bell" + of, layout.bell(i), sizeof(Bell));
    for (uint32_t tick : {6U, 7U}) {
      add("cell" + of, layout.cell(i, tick), sizeof(Cell));
      add("table" + of, layout.table(i, tick), layout.table_bytes());
      add("slot" + of, layout.slot(i, tick), layout.slot_bytes());
    }
    for (int to = 0; to < ranks; to++) add("channel" + of, layout.channel(i, to), sizeof(Channel));
  }
  std::sort(all.begin(), all.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  return all;
}

TEST(layout_has_room_for_everything) {
  for (const int ranks : {1, 2, 3, 5, 8, 33, 64}) {
    for (const int hosts : {1, 2, 7, 100}) {
      for (const size_t slot : {1, 4096, 5000, 256 << 10, 3 << 20}) {
        const int world = ranks * hosts;
        const std::string title =
            std::to_string(ranks) + " of " + std::to_string(world) + ", slots of " + std::to_string(slot);
        const Layout layout(static_cast<uint32_t>(ranks), static_cast<uint32_t>(world), slot);
        const std::vector<Extent> all = extents(layout, ranks);
        for (size_t i = 1; i < all.size(); i++)
          if (all[i - 1].end > all[i].begin)
            check(false, title + ": " + all[i - 1].what + " reaches into " + all[i].what);
        check(all.back().end <= layout.bytes, title + ": the last reaches beyond the end");
        check(layout.slot(0, 0) == layout.slot(0, 2), title + ": the slots are used in turns");
        check(layout.slot(0, 0) != layout.slot(0, 1), title + ": there are two slots");
        // A piece for each rank, twice where sizes are told ahead.
        check(layout.table_entries() >= 2 * static_cast<size_t>(world), title + ": entries in the table");
        check(layout.table_bytes() >= layout.table_entries() * sizeof(PieceEntry), title + ": table");
        check(layout.slot_bytes() >= slot, title + ": slots as large as asked for");
        // What is not for the bytes is for where each piece begins.
        const size_t lines = layout.slot_bytes() / 2 / kLine;
        check(lines >= static_cast<size_t>(world), title + ": a line for each piece");
        // Ranks that attach compute it anew from what the header says.
        const Layout again(static_cast<uint32_t>(ranks), static_cast<uint32_t>(world), layout.slot_bytes());
        check(again.bytes == layout.bytes, title + ": the same size again");
        check(again.slot_bytes() == layout.slot_bytes(), title + ": the same slots again");
      }
    }
  }
}

TEST(segment_begins_empty) {
  const auto segment = Segment::create(3, 5, 10000, "a token that is longer than there is room for it");
  check(segment->header().ranks == 3 && segment->header().world == 5, "numbers in the header");
  check(segment->header().magic == kMagic && segment->header().failed == 0, "no failure");
  for (int i = 0; i < 3; i++) {
    check(segment->state(i).presence == static_cast<uint32_t>(Presence::never_came), "nobody is there");
    check(segment->cell(i, 0).tick == 0 && segment->cell(i, 1).tick == 0, "nobody arrived");
    for (int to = 0; to < 3; to++)
      check(to == i || segment->channel(i, to).staging == -1, "nothing is staged");
  }
}

// ---- helpers ----

TEST(pool_runs_each_once) {
  for (const int helpers : {0, 1, 3}) {
    Pool pool(helpers, {0, -1});
    for (size_t round = 0; round < 400; round++) {
      const size_t count = round % 40;
      std::vector<std::atomic<int>> ran(count);
      pool.run(count, [&](size_t i) { ran[i]++; });
      for (size_t i = 0; i < count; i++) check(ran[i] == 1, std::to_string(helpers) + " helpers: each once");
    }
  }
}

TEST(pool_throws_what_a_task_threw) {
  for (const int helpers : {0, 2}) {
    Pool pool(helpers, {});
    for (int round = 0; round < 200; round++) {
      std::atomic<int> ran{0};
      const Outcome outcome = outcome_of([&] {
        pool.run(50, [&](size_t i) {
          ran++;
          if (i % 10 == 3) throw TimedOut("task " + std::to_string(i));
        });
      });
      check_kind(outcome, "TimedOut", "a task");
      check(ran <= 50, "none twice");
      pool.run(10, [&](size_t) { ran++; });
      check_kind(outcome_of([&] { pool.run(0, [](size_t) { throw TimedOut("none"); }); }), "", "no task");
    }
  }
}

// ---- waiting ----

TEST(waiting_is_woken) {
  for (const int micros : {0, 20}) {
    const Patience patience{std::chrono::microseconds(micros), std::chrono::microseconds(micros)};
    std::atomic<uint32_t> ping{0}, pong{0}, ping_sleepers{0}, pong_sleepers{0};
    int shared = 0;  // not atomic: what is ordered by the waiting
    std::thread other([&] {
      for (uint32_t i = 1; i <= 2000; i++) {
        const auto ready = [&] { return ping.load(std::memory_order_acquire) >= i; };
        wait_until(ping, ping_sleepers, patience, ready, [] {});
        shared++;
        pong.store(i);
        wake_sleepers(pong, pong_sleepers);
      }
    });
    for (uint32_t i = 1; i <= 2000; i++) {
      shared++;
      ping.store(i);
      wake_sleepers(ping, ping_sleepers);
      const auto ready = [&] { return pong.load(std::memory_order_acquire) >= i; };
      wait_until(pong, pong_sleepers, patience, ready, [] {});
    }
    other.join();
    check(shared == 4000, "each waited for the other");
    check(ping_sleepers == 0 && pong_sleepers == 0, "nobody is counted who does not sleep");
  }
}

TEST(waiting_can_be_given_up) {
  std::atomic<uint32_t> word{0}, sleepers{0};
  const Patience none{std::chrono::nanoseconds(0), std::chrono::nanoseconds(0)};
  int looks = 0;
  const Outcome outcome = outcome_of([&] {
    wait_until(word, sleepers, none, [] { return false; }, [&] {
      if (++looks == 3) throw TimedOut("enough");
    });
  });
  check_kind(outcome, "TimedOut", "check() throws");
  check(sleepers == 0, "nobody is counted who gave up");
}

// ---- watching ----

TEST(process_watch) {
  const pid_t child = fork_or_end();
  if (child == 0) {
    while (true) pause();
  }
  Watch watch(child);
  check(watch.alive() && !watch.stopped() && watch.pid() == child, "alive");
  kill(child, SIGSTOP);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  check(watch.alive() && watch.stopped(), "stopped");
  kill(child, SIGKILL);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  check(!watch.alive(), "dead, though nobody has waited for it");
  waitpid(child, &status, 0);
  const Watch moved(std::move(watch));
  check(!moved.alive() && !moved.stopped(), "gone");
}

}  // namespace
}  // namespace plough
