// Determines which samples a device keeps, and which of its inputs arrive as bytes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/compile/program.h"
#include "engine/planning/data_header.h"
#include "engine/runtime/input_layout.h"

namespace trainctl {

/// Data sets up to this total stay in the host's memory after their first read; larger ones are read again for every
/// batch: a sixteenth of the host's memory, at least 256 MiB. Each rank keeps the samples that it has read.
int64_t most_cached_bytes();

/// The tensors that the program loads, with `samples` samples, as a device could keep them; without SampleTable::read.
std::vector<SampleTable> sample_tables(const DataShapes& shapes, int64_t samples, const Program& program);

/// Returns whether a device should keep these tables: at most what a host keeps, so that start-up stays short.
bool small_enough_to_keep(const std::vector<SampleTable>& tables);

/// The tables of the fields that the program loads as bytes. Small loads are left out: a kernel of their own would cost
/// more than it saves.
std::vector<ByteTable> byte_tables(const std::vector<ByteField>& fields, const Program& program);

/// The operand of the program's first load of the field; null if the program does not load it.
const Operand* loaded_field(const Program& program, std::string_view field);

}  // namespace trainctl
