#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "errors.h"

namespace plough {
namespace {

std::string reason(const std::string& what) { return what + ": " + std::strerror(errno); }

char* map(int fd, size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) throw Error(reason("cannot map " + std::to_string(bytes >> 20) + " MiB of shared memory"));
  return static_cast<char*>(base);
}

int anonymous_file() {
  // Not glibc's memfd_create: it is missing from the older C libraries this must run on.
  int fd = static_cast<int>(syscall(SYS_memfd_create, "plough-ccl", 1U /* MFD_CLOEXEC */));
  if (fd < 0) throw Error(reason("cannot make shared memory (memfd_create)"));
  return fd;
}

}  // namespace

std::shared_ptr<Segment> Segment::create(int ranks, int world, size_t slot_bytes, const std::string& token) {
  Layout layout(ranks, world, slot_bytes);
  int fd = anonymous_file();
  char* base = nullptr;
  try {
    if (fchmod(fd, 0600) != 0) throw Error(reason("cannot make shared memory private"));
    if (ftruncate(fd, static_cast<off_t>(layout.bytes)) != 0) throw Error(reason("cannot size shared memory"));
    base = map(fd, layout.bytes);
  } catch (...) {
    close(fd);
    throw;
  }
  // A new memfd is all zeros, which is what every atomic starts from but these.
  std::shared_ptr<Segment> segment(new Segment(fd, base, layout));
  Header& header = segment->header();
  header.ranks = static_cast<uint32_t>(ranks);
  header.world = static_cast<uint32_t>(world);
  header.slot_bytes = layout.slot_bytes();
  std::strncpy(header.token, token.c_str(), sizeof(header.token) - 1);
  for (int from = 0; from < ranks; from++)
    for (int to = 0; to < ranks; to++)
      if (from != to) segment->channel(from, to).staging.store(-1, std::memory_order_relaxed);
  header.magic = kMagic;
  return segment;
}

std::shared_ptr<Segment> Segment::attach(int pid, int fd, const std::string& token) {
  std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  int own = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) throw Error(reason("cannot open the shared memory of process " + std::to_string(pid)));
  char* base = nullptr;
  size_t bytes = 0;
  try {
    struct stat status {};
    if (fstat(own, &status) != 0 || static_cast<size_t>(status.st_size) < sizeof(Header))
      throw Error("the shared memory of process " + std::to_string(pid) + " is not a group's");
    bytes = static_cast<size_t>(status.st_size);
    base = map(own, bytes);
    const auto* header = reinterpret_cast<const Header*>(base);
    std::string found(header->token, strnlen(header->token, sizeof(header->token)));
    if (header->magic != kMagic || found != token)
      throw Error("the shared memory of process " + std::to_string(pid) + " belongs to another group");
    Layout layout(header->ranks, header->world, header->slot_bytes);
    if (layout.bytes != bytes) throw Error("the ranks run different versions of Plough");
    return std::shared_ptr<Segment>(new Segment(own, base, layout));
  } catch (...) {
    if (base != nullptr) munmap(base, bytes);
    close(own);
    throw;
  }
}

Segment::~Segment() {
  munmap(base_, layout_.bytes);
  close_fd();
}

void Segment::close_fd() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

}  // namespace plough
