// optimizer.state_type: optimizer states that are stored in bf16, or as int8 codes with one f32 scale per block. An
// update computes in f32:
//
//   unpack states -> update -> pack states
//
// The states in f32 need memory only while the update of their bucket runs. With int8, parameters begin at
// block boundaries of their bucket and shards end at block boundaries, so that a block consists of the same elements of
// the parameter under every plan.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/compile/lower/lowering.h"

namespace trainctl {

/// True if the states of a parameter of this shape are stored as int8 codes.
bool keeps_codes(const OptimizerSpec& spec, const Shape& shape);
/// Names and shapes of the two tensors that are stored in place of a state of a parameter of this shape: the codes (i32
/// words of four) and the scales.
std::vector<std::pair<std::string, Shape>> coded_states(const std::string& state, const Shape& shape);
/// True if this rank's part of a parameter consists of whole blocks of the parameter.
bool has_whole_blocks(const Layout& layout, const Mesh& mesh, const Shape& shape);

/// Adds the codes and scales in this rank's part of the bucket to Compiler::other_states, from which checkpoints save
/// them.
void record_codes(Compiler& c, const BucketPlan& plan, const Bucket& bucket, const RankBucket& buffers,
                  const std::vector<std::string>& states);

/// Emits the unpacking of state number `state` of a piece; returns the unpacked state, in f32.
View unpack_state(Lowering& l, int bucket, const Bucket::Piece& piece, size_t state);
/// Emits the packing of `unpacked`, which unpack_state returned and the update has changed. `norm`: the norm of all
/// gradients if the job has clip_norm, as in update().
void pack_state(Lowering& l, int bucket, const Bucket::Piece& piece, size_t state, const View& unpacked,
                const std::optional<View>& norm);

}  // namespace trainctl
