// Reads the elements of a stored range that checkpoints take from this rank, block by block, as f32.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/runtime/executor.h"
#include "engine/runtime/stored_ranges.h"

namespace trainctl {

/// Calls use(first, values) for consecutive blocks of the range's own elements: `first` is the place of the first value
/// in this rank's part of the variable. The range must hold floats, which are multiplied by `factor`. Waits for all
/// started steps.
void for_each_own_block(const StoredRange& range, Executor& executor,
                        const std::function<void(int64_t first, std::span<const float> values)>& use, float factor = 1);

/// The factor by which gradients of the last step, which are those of a scaled loss under precision: fp16, become those
/// of the loss.
float gradient_factor(const Program& program, Executor& executor);

}  // namespace trainctl
