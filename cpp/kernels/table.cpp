// The kernels of one instruction set, as the compiler's flags and SF_ISA say. The table is all that leaves
// this object.
#include "core/dispatch.hpp"
#include "kernels/activation.hpp"
#include "kernels/attention.hpp"
#include "kernels/attention_decode.hpp"
#include "kernels/cast.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/limits.hpp"
#include "kernels/linear.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rope.hpp"
#include "kernels/softmax.hpp"

#define SF_TEXT_(x) #x
#define SF_TEXT(x) SF_TEXT_(x)

namespace simdformer {

const KernelTable* SF_JOIN(table_, SF_ISA)() noexcept {
  using namespace SF_ISA;
  using Arch = NativeArch;
  static constexpr KernelTable kTable = {SF_TEXT(SF_ISA),
                                         kPairs,
                                         activation<Arch>,
                                         swiglu<Arch>,
                                         softmax<Arch>,
                                         rms_norm<Arch>,
                                         layer_norm<Arch>,
                                         rope_table<Arch>,
                                         rope<Arch>,
                                         convert<Arch>,
                                         pack<Arch>,
                                         unpack<Arch>,
                                         pack_rows<Arch>,
                                         linear<Arch>,
                                         attention_pack<Arch>,
                                         attention_many<Arch>,
                                         attention_few<Arch>,
                                         attention_merge<Arch>,
                                         2 * kChains * kLanes<Arch, float>,
                                         fma_chains<Arch>,
                                         read_memory<Arch>};
  return &kTable;
}

}  // namespace simdformer
