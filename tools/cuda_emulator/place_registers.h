// See place_registers.cpp.
#pragma once

#include <map>
#include <vector>

#include "tools/cuda_emulator/instruction.h"

namespace trainctl::emulator {

/// Gives the registers of `widths` (by their place so far: bytes a lane, 0 for predicates) new places from `fixed` on;
/// returns where they end.
int32_t place_registers(std::vector<Instruction>& code, const std::map<int32_t, uint8_t>& widths, int32_t fixed);

}  // namespace trainctl::emulator
