#include "oneccl_link.h"

#include <oneapi/ccl.hpp>

#include <ifaddrs.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Address = ccl::kvs::address_type;
using Store = ccl::shared_ptr_class<ccl::kvs>;

constexpr double FOREVER = 3.2e7;  // a year, in seconds: a time point has room for it
constexpr auto SPIN = std::chrono::microseconds(200);

struct TimedOut : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Clock::duration seconds(double value) {
  const std::chrono::duration<double> bounded(std::min(std::max(value, 0.0), FOREVER));
  return std::chrono::duration_cast<Clock::duration>(bounded);
}

std::string in_seconds(double value) {
  char text[32];
  snprintf(text, sizeof text, "%g s", value);
  return text;
}

// The border: whatever is thrown in here becomes a status and a text.
template <typename Call>
int guarded(char* error, size_t error_size, Call call) noexcept {
  const auto say = [&](const char* what, int status) {
    if (error != nullptr && error_size != 0) snprintf(error, error_size, "%s", what);
    return status;
  };
  try {
    call();
    return PLOUGH_ONECCL_OK;
  } catch (const TimedOut& problem) {
    return say(problem.what(), PLOUGH_ONECCL_TIMED_OUT);
  } catch (const Broken& problem) {
    return say(problem.what(), PLOUGH_ONECCL_BROKEN);
  } catch (const std::exception& problem) {
    return say(problem.what(), PLOUGH_ONECCL_FAILED);
  } catch (...) {
    return say("oneCCL threw something that is no std::exception", PLOUGH_ONECCL_FAILED);
  }
}

struct Handle {
  Handle(ccl::communicator made, int size, int rank) : comm(std::move(made)), size(size), rank(rank) {}

  ccl::communicator comm;
  int size;
  int rank;
  std::vector<ccl::event> events;
  bool broken = false;
};

struct Process {
  std::mutex mutex;
  std::vector<std::pair<Address, Store>> stores;  // made here; peers may still read from them
  int open = 0;
  bool orderly = true;  // nothing failed or timed out
  Handle* last = nullptr;
  pid_t pid = 0;

  // oneCCL without workers makes progress in whoever calls it, and does not expect two of them. Held for
  // single calls, never while waiting, so threads with handles of their own do not stop one another.
  std::mutex engine;
};

Process& process() {
  static Process& only = *new Process;  // never destroyed: oneCCL may be gone by then
  return only;
}

void failed() {
  std::lock_guard<std::mutex> lock(process().mutex);
  process().orderly = false;
}

// Without its last communicator oneCCL shuts its transport down, and MPI never comes up a second time. So the
// communicator that is closed last stays until the process ends. Only then is there an MPI_Finalize, and it
// waits for the other ranks to come to theirs. After a failure nobody may wait for anybody: then there is
// none, which is how Intel MPI's launcher learns that it has to stop the job.
void at_exit() {
  Process& here = process();
  std::unique_lock<std::mutex> lock(here.mutex, std::try_to_lock);
  if (!lock || !here.orderly || here.open != 0 || here.pid != getpid()) return;
  guarded(nullptr, 0, [&] { delete std::exchange(here.last, nullptr); });
}

bool has_interface(const char* wanted) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return true;  // then oneCCL may try
  bool found = false;
  for (const ifaddrs* one = all; one != nullptr && !found; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    found = wanted != nullptr ? strstr(one->ifa_name, wanted) != nullptr : strstr(one->ifa_name, "lo") == nullptr;
  }
  freeifaddrs(all);
  return found;
}

// oneCCL crashes where it finds no interface to meet on. It looks at the names as we do: for what the variable
// says, else for any that is not the loopback.
void choose_interface() {
  const char* wanted = getenv("CCL_KVS_IFACE");
  if (has_interface(wanted)) return;
  if (wanted != nullptr)
    throw std::invalid_argument(std::string("CCL_KVS_IFACE=") + wanted + ": no such network interface with an address");
  setenv("CCL_KVS_IFACE", "lo", 1);  // a machine by itself
}

void initialise() {
  static std::once_flag once;
  std::call_once(once, [] {
    choose_interface();
    // Else a communicator that is destroyed takes leave of the process that made its address, and if that is
    // gone already, oneCCL throws from a destructor: the end of this process.
    setenv("CCL_PMI_FORCE_FINALIZE", "1", 0);
    ccl::init();
    process().pid = getpid();
    atexit(at_exit);  // after oneCCL's own, so it runs before them
  });
}

Store store_of(const Address& address) {
  {
    std::lock_guard<std::mutex> lock(process().mutex);
    for (const auto& [made, store] : process().stores)
      if (made == address) return store;
  }
  return ccl::create_kvs(address);
}

// oneCCL sets no limit to the time ranks may take to come, so a thread of its own waits for them.
struct Opening {
  std::mutex mutex;
  std::condition_variable changed;
  Handle* handle = nullptr;  // not owned: if nobody takes it, it stays
  std::exception_ptr problem;
  bool done = false;

  void run(const Address& address, int size, int rank) noexcept {
    Handle* made = nullptr;
    std::exception_ptr thrown;
    try {
      made = new Handle(ccl::create_communicator(size, rank, store_of(address)), size, rank);
    } catch (...) {
      thrown = std::current_exception();
    }
    std::lock_guard<std::mutex> lock(mutex);
    handle = made;
    problem = thrown;
    done = true;
    changed.notify_all();
  }
};

// Whoever waits also works: test() makes progress. Spins for as long as a message takes, then lets others run
// between two looks.
void wait_for(std::vector<ccl::event>& events, double timeout_s) {
  const auto start = Clock::now();
  const auto limit = seconds(timeout_s);
  auto waited = Clock::duration::zero();
  size_t done = 0;
  for (unsigned looks = 1;; looks++) {
    {
      std::lock_guard<std::mutex> lock(process().engine);
      while (done < events.size() && events[done].test()) done++;
    }
    if (done == events.size()) return;
    if (waited >= SPIN) sched_yield();
    if (looks % 16 != 0) continue;
    waited = Clock::now() - start;
    if (waited > limit) throw TimedOut("no answer from another rank within " + in_seconds(timeout_s));
  }
}

// Start what has to be started, then wait for it. The handle is broken until all went well.
template <typename Start>
void carry_out(Handle& link, double timeout_s, Start start) {
  if (link.broken) throw Broken("this oneCCL communicator failed before and cannot be used any more");
  link.broken = true;
  {
    std::lock_guard<std::mutex> lock(process().engine);
    start();
  }
  wait_for(link.events, timeout_s);
  link.events.clear();
  link.broken = false;
}

ccl::event start_collective(const ccl::communicator& comm, int op, const void* in, void* out, size_t count,
                            ccl::datatype type) {
  const auto sum = ccl::reduction::sum;
  switch (op) {
    case PLOUGH_ONECCL_ALLREDUCE:
      return ccl::allreduce(in, out, count, type, sum, comm);
    case PLOUGH_ONECCL_BROADCAST:
      return ccl::broadcast(const_cast<void*>(in), out, count, type, 0, comm);
    case PLOUGH_ONECCL_ALLGATHER:
      return ccl::allgather(in, out, count, type, comm);
    case PLOUGH_ONECCL_REDUCE_SCATTER:
      return ccl::reduce_scatter(in, out, count, type, sum, comm);
    case PLOUGH_ONECCL_ALLTOALL:
      return ccl::alltoall(in, out, count, type, comm);
    case PLOUGH_ONECCL_REDUCE:
      return ccl::reduce(in, out, count, type, sum, 0, comm);
    default:
      return ccl::barrier(comm);
  }
}

}  // namespace

int plough_oneccl_address(void* address, size_t capacity, size_t* length, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    if (capacity < ccl::kvs::address_max_size)
      throw std::invalid_argument("no room for an address of " + std::to_string(ccl::kvs::address_max_size) + " bytes");
    initialise();
    const Store store = ccl::create_main_kvs();
    const Address made = store->get_address();
    std::lock_guard<std::mutex> lock(process().mutex);
    process().stores.emplace_back(made, store);
    memcpy(address, made.data(), made.size());
    *length = made.size();
  });
}

int plough_oneccl_open(const void* address, size_t length, int size, int rank, double timeout_s, void** handle,
                       char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    Address where{};
    if (length != where.size()) throw std::invalid_argument("not an address oneCCL gave: wrong length");
    if (size < 1 || rank < 0 || rank >= size) throw std::invalid_argument("a rank outside of its group");
    memcpy(where.data(), address, length);
    initialise();
    const auto opening = std::make_shared<Opening>();
    std::thread([=] { opening->run(where, size, rank); }).detach();
    std::unique_lock<std::mutex> lock(opening->mutex);
    if (!opening->changed.wait_for(lock, seconds(timeout_s), [&] { return opening->done; })) {
      failed();
      throw TimedOut("not all of " + std::to_string(size) + " ranks came within " + in_seconds(timeout_s));
    }
    if (opening->problem) {
      failed();
      std::rethrow_exception(opening->problem);
    }
    *handle = opening->handle;
    std::lock_guard<std::mutex> count(process().mutex);
    process().open++;
  });
}

int plough_oneccl_exchange(void* handle, const void* const* sends, const size_t* send_bytes, void* const* recvs,
                           const size_t* recv_bytes, double timeout_s, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    Handle& link = *static_cast<Handle*>(handle);
    carry_out(link, timeout_s, [&] {
      // Not alltoallv: that takes no vectors of buffers (oneCCL throws), and over MPI, where every rank
      // chooses the algorithm by its own number of bytes, ranks with uneven ones wait for ever.
      for (int step = 1; step < link.size; step++) {
        const int from = (link.rank + link.size - step) % link.size;
        if (recv_bytes[from] == 0) continue;
        link.events.push_back(ccl::recv(recvs[from], recv_bytes[from], ccl::datatype::uint8, from, link.comm));
      }
      for (int step = 1; step < link.size; step++) {
        const int to = (link.rank + step) % link.size;
        if (send_bytes[to] == 0) continue;
        void* bytes = const_cast<void*>(sends[to]);
        link.events.push_back(ccl::send(bytes, send_bytes[to], ccl::datatype::uint8, to, link.comm));
      }
    });
  });
}

int plough_oneccl_collective(void* handle, int op, const void* in, void* out, size_t count, int dtype, char* error,
                             size_t error_size) {
  return guarded(error, error_size, [&] {
    if (op < PLOUGH_ONECCL_ALLREDUCE || op > PLOUGH_ONECCL_BARRIER) throw std::invalid_argument("no such operation");
    if (dtype != PLOUGH_ONECCL_F32 && dtype != PLOUGH_ONECCL_BF16) throw std::invalid_argument("no such type");
    const auto type = dtype == PLOUGH_ONECCL_BF16 ? ccl::datatype::bfloat16 : ccl::datatype::float32;
    Handle& link = *static_cast<Handle*>(handle);
    carry_out(link, FOREVER, [&] {
      link.events.push_back(start_collective(link.comm, op, in, out, count, type));
    });
  });
}

void plough_oneccl_close(void* handle) {
  Handle* link = static_cast<Handle*>(handle);
  if (link == nullptr) return;
  Process& here = process();
  std::lock_guard<std::mutex> lock(here.mutex);
  here.open--;
  if (link->broken) {
    here.orderly = false;  // and it stays: destroying its events would wait for them
  } else if (here.open == 0 && here.last == nullptr) {
    here.last = link;
  } else {
    std::lock_guard<std::mutex> alone(here.engine);
    guarded(nullptr, 0, [&] { delete link; });
  }
}
