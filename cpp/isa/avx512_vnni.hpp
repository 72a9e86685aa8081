// AVX-512 with AVX512-VNNI (Cascade Lake, Ice Lake). Read by isa.hpp, which lists the names.
#pragma once

#include "isa/avx512_bytes.hpp"
#include "isa/no_bf16_pairs.hpp"
