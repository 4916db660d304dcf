// oneCCL behind a C ABI: bytes between the leaders of hosts, and oneCCL's own collectives for comparison.
//
// A library of its own, because oneCCL is optional and its API is C++: whoever uses it loads it by path and
// looks the functions up. Must not know torch, nor the rest of the core. oneCCL reads the environment once,
// at the first of these calls: `plough.comm.oneccl.environment_for` says what must be there.
//
// Every function but close returns a plough_oneccl_status; unless that is OK, `error` holds a NUL-terminated
// text, cut to error_size. No exception comes out. One thread at a time per handle; threads with handles of
// their own may run at once.
#pragma once

#include <stddef.h>

#define PLOUGH_ONECCL_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum plough_oneccl_status {
  PLOUGH_ONECCL_OK = 0,
  PLOUGH_ONECCL_FAILED = 1,
  // The handle is only good for closing, and the buffers must stay as long as the process: oneCCL cannot be
  // told to let go of them and may read and write them later. So it is after FAILED.
  PLOUGH_ONECCL_TIMED_OUT = 2,
  PLOUGH_ONECCL_BROKEN = 3,  // the handle failed or timed out before
};

enum plough_oneccl_op {
  PLOUGH_ONECCL_ALLREDUCE = 0,       // in and out: count
  PLOUGH_ONECCL_BROADCAST = 1,       // from rank 0; in (rank 0's counts) and out: count
  PLOUGH_ONECCL_ALLGATHER = 2,       // in: count, out: size * count
  PLOUGH_ONECCL_REDUCE_SCATTER = 3,  // in: size * count, out: count
  PLOUGH_ONECCL_ALLTOALL = 4,        // in and out: size * count
  PLOUGH_ONECCL_REDUCE = 5,          // to rank 0; in and out: count
  PLOUGH_ONECCL_BARRIER = 6,         // ignores buffers and count
};

enum plough_oneccl_dtype { PLOUGH_ONECCL_F32 = 0, PLOUGH_ONECCL_BF16 = 1 };

// A new place to meet, served from this process until it ends. capacity: 256 is enough. *length: the bytes
// written.
PLOUGH_ONECCL_API int plough_oneccl_address(void* address, size_t capacity, size_t* length, char* error,
                                            size_t error_size);

// Collective over `size` ranks, one of which made the address; returns when every rank is there.
PLOUGH_ONECCL_API int plough_oneccl_open(const void* address, size_t length, int size, int rank,
                                         double timeout_s, void** handle, char* error, size_t error_size);

// All four arrays have an entry per rank; our own is ignored, zero bytes move nothing, and what rank a sends
// b is as long as what b receives from a. From buffer to buffer, without a copy here.
PLOUGH_ONECCL_API int plough_oneccl_exchange(void* handle, const void* const* sends, const size_t* send_bytes,
                                             void* const* recvs, const size_t* recv_bytes, double timeout_s,
                                             char* error, size_t error_size);

// oneCCL's own; reductions are sums. Returns when it is done here, however long that takes. `in` may be `out`
// where they are equally long.
PLOUGH_ONECCL_API int plough_oneccl_collective(void* handle, int op, const void* in, void* out, size_t count,
                                               int dtype, char* error, size_t error_size);

// For an orderly end, after the last call on every rank; null is fine. Does not wait for anybody. Under MPI
// the process then waits for the other ranks when it exits, as MPI wants it. So a rank whose job failed must
// not close: it then exits at once, and the launcher stops the others.
PLOUGH_ONECCL_API void plough_oneccl_close(void* handle);

#ifdef __cplusplus
}
#endif
