// Lets registers of a kernel that are never live at the same time share a place.
#pragma once

#include <map>
#include <vector>

#include "tools/cuda_emulator/instruction.h"

namespace trainctl::emulator {

/// Assigns new places from `fixed` on to the registers of `widths` (old place -> bytes per lane, 0: predicate); returns
/// the end of the last one.
int32_t place_registers(std::vector<Instruction>& code, const std::map<int32_t, uint8_t>& widths, int32_t fixed);

}  // namespace trainctl::emulator
