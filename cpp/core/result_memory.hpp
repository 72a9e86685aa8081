// Memory of results. New memory comes from the system a page at a time, which takes longer than computing what goes
// into it (1.5 us for 4 KB in a virtual machine: ten times what SwiGLU takes for them), and goes back when it is
// freed. What was freed here waits for the next result of about its size instead: 128 MB of it at most.
#pragma once

#include <cstddef>

namespace simdformer {

// Bytes from which on a piece is kept; less than that malloc keeps itself.
constexpr std::size_t kLargeResult = std::size_t{256} << 10;

// Null where there is none. It is malloc's: realloc and free may have it, and pieces of theirs may be given back
// here.
void* take_result(std::size_t bytes) noexcept;
void give_back_result(void* memory) noexcept;

}  // namespace simdformer
