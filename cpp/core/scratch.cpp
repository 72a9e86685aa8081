// Scratch: one arena a thread. It grows when it is empty, to what was needed at once the time before.
#include <new>

#include "core/memory.hpp"
#include "core/parallel.hpp"

#if SF_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace simdformer {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMostScratchKept = int64_t{64} << 20;

// Under AddressSanitizer what is not handed out is out of bounds, and between two pieces there is some of
// that.
#if SF_ASAN
constexpr int64_t kMargin = 64;
void forbid(char* memory, int64_t bytes) { __asan_poison_memory_region(memory, static_cast<size_t>(bytes)); }
void allow(char* memory, int64_t bytes) { __asan_unpoison_memory_region(memory, static_cast<size_t>(bytes)); }
#else
constexpr int64_t kMargin = 0;
void forbid(char*, int64_t) {}
void allow(char*, int64_t) {}
#endif

struct Arena {
  char* base = nullptr;
  int64_t capacity = 0;
  int64_t top = 0;     // bytes handed out of [base, base + capacity)
  int64_t in_use = 0;  // bytes handed out, in the arena and beside it
  int64_t peak = 0;    // the most that in_use has been within kMostScratchKept

  ~Arena() { release(); }

  bool holds(const void* pointer) const { return pointer >= base && pointer < base + capacity; }

  // `bytes` as reserved, of which the first `wanted` may be touched.
  void* take(int64_t bytes, int64_t wanted) {
    if (in_use == 0) reserve(bytes > peak ? bytes : peak);
    char* pointer;
    if (bytes <= capacity - top) {
      pointer = base + top;
      top += bytes;
    } else {
      pointer = allocate(bytes).release();  // the arena cannot move while parts of it are in use
    }
    in_use += bytes;
    if (in_use > peak && in_use <= kMostScratchKept) peak = in_use;
    forbid(pointer, bytes);
    allow(pointer, wanted);
    return pointer;
  }

  void give_back(void* memory, int64_t bytes) {
    char* const pointer = static_cast<char*>(memory);
    in_use -= bytes;
    if (holds(pointer)) {
      top -= bytes;
      forbid(pointer, bytes);
    } else {
      allow(pointer, bytes);
      FreeMemory()(pointer);
    }
  }

 private:
  void reserve(int64_t bytes) {
    if (bytes <= capacity || bytes > kMostScratchKept) return;
    release();
    base = allocate(bytes).release();
    capacity = bytes;
    forbid(base, capacity);
  }

  void release() {
    allow(base, capacity);
    FreeMemory()(base);
    base = nullptr;
    capacity = 0;
  }
};

thread_local Arena arena;

int64_t round_up(int64_t bytes) {
  if (bytes > INT64_MAX - kAlignment - kMargin) throw std::bad_alloc();
  return (bytes <= 0 ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment) + kMargin;
}

}  // namespace

Scratch::Scratch(int64_t bytes) : bytes_(round_up(bytes)) {
  pointer_ = arena.take(bytes_, bytes < 0 ? 0 : bytes);
}

Scratch::~Scratch() { arena.give_back(pointer_, bytes_); }

}  // namespace simdformer
