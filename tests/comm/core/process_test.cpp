// Ranks that are processes, as in life: each maps the memory elsewhere, and can be killed or stopped.
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <set>

#include "cases.h"

namespace plough {
namespace {

constexpr int kRanks = 3;

// Shared by the ranks and whoever started them.
struct Board {
  std::atomic<int> pid, fd;  // whose segment it is
  struct Rank {
    std::atomic<int> calls, ended;
    char kind[32], text[kTextBytes];
  } ranks[kRanks];
};

class Ranks {
 public:
  // body: what each does; how it ended can be asked for with outcome().
  Ranks(const Setup& setup, const std::function<void(Member&, Board::Rank&)>& body) {
    void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board_ = new (memory) Board();
    for (int rank = 0; rank < kRanks; rank++) {
      pids_[rank] = fork_or_end();
      if (pids_[rank] != 0) continue;
      Board::Rank& own = board_->ranks[rank];
      const Outcome outcome = outcome_of([&] {
        Member member;
        join(member, setup, rank);
        body(member, own);
      });
      std::strncpy(own.kind, outcome.kind.c_str(), sizeof(own.kind) - 1);
      std::strncpy(own.text, outcome.text.c_str(), sizeof(own.text) - 1);
      own.ended = 1;
      // Not exit(): what belongs to the parent is the parent's.
      _exit(lost() == 0 ? 0 : 1);
    }
  }

  ~Ranks() {
    for (const pid_t pid : pids_) {
      if (pid == 0) continue;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    munmap(board_, sizeof(Board));
  }

  pid_t pid(int rank) const { return pids_[rank]; }

  // All have made so many calls.
  void wait_for_calls(int calls) {
    for (const Board::Rank& rank : board_->ranks)
      while (rank.calls < calls && !rank.ended) usleep(200);
  }

  Outcome outcome(int rank) {
    const auto start = Clock::now();
    while (!board_->ranks[rank].ended && seconds_since(start) < 60) usleep(200);
    check(board_->ranks[rank].ended != 0, "rank " + std::to_string(rank) + " never ended");
    return {board_->ranks[rank].kind, board_->ranks[rank].text};
  }

  void wait_well() {
    for (int rank = 0; rank < kRanks; rank++) {
      check_kind(outcome(rank), "", "rank " + std::to_string(rank));
      int status = -1;
      waitpid(pids_[rank], &status, 0);
      check(status == 0, "rank " + std::to_string(rank) + " failed, or died of " + std::to_string(status));
      pids_[rank] = 0;
    }
  }

 private:
  void join(Member& member, const Setup& setup, int rank) {
    std::shared_ptr<Segment> segment;
    if (rank == 0) {
      segment = Segment::create(kRanks, kRanks, setup.slot_bytes, "token");
      board_->fd = segment->fd();
      board_->pid = getpid();
    } else {
      while (board_->pid == 0) usleep(100);
      segment = Segment::attach(board_->pid, board_->fd, "token");
    }
    const Deadline deadline = Clock::now() + std::chrono::seconds(60);
    std::unique_ptr<Group> group(new Group(segment, rank, rank, "here", Reach::slots, setup.tuning));
    group->meet(deadline);
    const bool reached = group->can_reach_all(setup.reach == Reach::kernel);
    check(reached == (setup.reach == Reach::kernel), "can_reach_all");
    segment->close_fd();
    group->set_reach(setup.reach);
    member.rank = rank, member.world = kRanks;
    member.title = std::string("process, ") + name_of(setup.reach) + ", rank " + std::to_string(rank);
    member.ccl.reset(new Collectives(std::move(group), nullptr, places_of({0, 0, 0}), rank));
  }

  Board* board_;
  pid_t pids_[kRanks];
};

Setup setup_for(Reach reach, bool small) {
  Setup setup{{0, 0, 0}, reach};
  if (!small) setup.tuning = Tuning(), setup.slot_bytes = 256 << 10;
  return setup;
}

TEST(process_random) {
  for (const Reach reach : {Reach::slots, Reach::kernel}) {
    Ranks ranks(setup_for(reach, true), [](Member& member, Board::Rank&) {
      for (uint64_t i = 0; i < 1000; i++) perform(member, random_case(hash(40, i), member.world, 12000));
    });
    ranks.wait_well();
  }
}

void allreduce_for_ever(Member& member, Board::Rank& own, size_t count, int timeout_ms) {
  std::vector<float> data(count, 1.0F);
  while (true) {
    member.ccl->allreduce(member.turn(timeout_ms), data.data(), data.data(), count, {DType::f32, RedOp::max});
    own.calls++;
  }
}

// Killed in the middle of it, whatever the middle is at that moment.
TEST(process_killed) {
  for (int again = 0; again < 18; again++) {
    const int victim = again % kRanks;
    const size_t count = again % 4 == 3 ? 100 : 500000;
    Ranks ranks(setup_for(again % 2 == 0 ? Reach::kernel : Reach::slots, again % 4 == 1),
                [=](Member& member, Board::Rank& own) { allreduce_for_ever(member, own, count, 60000); });
    ranks.wait_for_calls(3);
    usleep(static_cast<useconds_t>(hash(50, static_cast<uint64_t>(again)) % 3000));
    kill(ranks.pid(victim), SIGKILL);
    const auto start = Clock::now();
    const std::string pid = std::to_string(ranks.pid(victim));
    const std::string who = "rank " + std::to_string(victim) + " (process " + pid;
    std::vector<Outcome> told;
    for (int rank = 0; rank < kRanks; rank++) {
      if (rank == victim) continue;
      told.push_back(ranks.outcome(rank));
      check(seconds_since(start) < 10, "killed: rank " + std::to_string(rank) + " learned of it late");
      check_says(told.back(), who + " on here) died; all_reduce #", "killed");
    }
    check_told(told, "PeerLost", "killed");
  }
}

TEST(process_stopped) {
  for (const Reach reach : {Reach::kernel, Reach::slots}) {
    Ranks ranks(setup_for(reach, false),
                [](Member& member, Board::Rank& own) { allreduce_for_ever(member, own, 100000, 500); });
    ranks.wait_for_calls(2);
    kill(ranks.pid(1), SIGSTOP);
    const auto start = Clock::now();
    for (const int rank : {0, 2}) {
      const Outcome outcome = ranks.outcome(rank);
      check(seconds_since(start) < 20, "stopped: at its deadline");
      check_kind(outcome, "TimedOut", "stopped");
      for (const char* part : {"timed out after 0.5 s: rank 1 (process ", "and it is stopped by a signal"})
        check_says(outcome, part, "stopped");
    }
    // Woken too late, it is told as well.
    kill(ranks.pid(1), SIGCONT);
    check(ranks.outcome(1).kind != "", "the one that was stopped fails, too");
  }
}

TEST(process_leaves_no_file) {
  const auto files = [] {
    std::set<std::string> names;
    if (DIR* folder = opendir("/dev/shm")) {
      while (const dirent* entry = readdir(folder)) names.insert(entry->d_name);
      closedir(folder);
    }
    return names;
  };
  const auto before = files();
  Ranks ranks(setup_for(Reach::slots, false),
              [](Member& member, Board::Rank& own) { allreduce_for_ever(member, own, 1000, 60000); });
  ranks.wait_for_calls(2);
  for (const std::string& name : files())
    check(before.count(name) > 0 || name.find("plough") == std::string::npos, "while it runs: " + name);
  for (int rank = 0; rank < kRanks; rank++) kill(ranks.pid(rank), SIGKILL);
  for (const std::string& name : files())
    check(before.count(name) > 0 || name.find("plough") == std::string::npos, "left behind: " + name);
}

TEST(process_attach) {
  const auto segment = Segment::create(2, 2, 4096, "right");
  const auto again = Segment::attach(getpid(), segment->fd(), "right");
  again->state(1).rank = 42;
  check(segment->state(1).rank == 42, "the same memory");
  check(again->layout().bytes == segment->layout().bytes, "the same layout");
  const auto attach = [](int pid, int fd, const char* token) {
    return outcome_of([=] { Segment::attach(pid, fd, token); });
  };
  const Outcome wrong = attach(getpid(), segment->fd(), "wrong");
  check_kind(wrong, "Error", "another token");
  check_says(wrong, "belongs to another group", "another token");
  check_kind(attach(getpid(), 999, "right"), "Error", "no such file");
  const int file = open("/proc/self/exe", O_RDONLY);
  check_kind(attach(getpid(), file, "right"), "Error", "another file");
  close(file);
  check_kind(attach(1 << 22, 3, "right"), "Error", "no such process");
  segment->header().slot_bytes += 4096;
  check_says(attach(getpid(), segment->fd(), "right"), "different versions", "another layout");
  segment->header().slot_bytes -= 4096;

  if (geteuid() != 0) {
    std::printf("not root: cannot become another user to see that it is kept out\n");
    return;
  }
  const pid_t owner = getpid();
  const pid_t child = fork_or_end();
  if (child == 0) {
    const bool another = setgroups(0, nullptr) == 0 && setgid(65534) == 0 && setuid(65534) == 0;
    const Outcome outcome = attach(owner, segment->fd(), "right");
    check(another, "become another user");
    check_kind(outcome, "Error", "another user");
    check_says(outcome, "Permission denied", "another user");
    const auto address = reinterpret_cast<uint64_t>(&segment->header().magic);
    check(!can_read(owner, address, kMagic), "nor read our memory");
    _exit(lost() == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  check(status == 0, "another user must be kept out");
}

}  // namespace
}  // namespace plough
