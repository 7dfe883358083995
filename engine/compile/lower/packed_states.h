// optimizer.state_type: which parameters have their states in fewer bytes, and where. An update computes in f32:
//
//   unpack states -> update -> pack states
//
// The states in f32 need memory only while the update of their bucket runs. int8: parameters begin at blocks in their
// bucket, and shards end at blocks, so that a block is the same elements of the parameter under every plan.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/compile/lower/lowering.h"

namespace trainctl {

/// True if the states of a parameter of this shape are kept as int8.
bool keeps_codes(const OptimizerSpec& spec, const Shape& shape);
/// Names and shapes of what is kept in place of a state of a parameter of this shape: words of four codes, and scales.
std::vector<std::pair<std::string, Shape>> coded_states(const std::string& state, const Shape& shape);
/// True if this rank's part of a parameter with codes is blocks of the whole parameter.
bool has_whole_blocks(const Layout& layout, const Mesh& mesh, const Shape& shape);

/// Notes the codes and scales in this rank's part of the bucket for checkpoints (Compiler::other_states).
void note_codes(Compiler& c, const BucketPlan& plan, const Bucket& bucket, const RankBucket& buffers,
                const std::vector<std::string>& states);

/// Emits the unpacking of state number `state` of a piece; returns it in f32.
View unpack_state(Lowering& l, int bucket, const Bucket::Piece& piece, size_t state);
/// Emits the packing of `unpacked`, which unpack_state returned.
void pack_state(Lowering& l, int bucket, const Bucket::Piece& piece, size_t state, const View& unpacked,
                const std::optional<View>& norm);

}  // namespace trainctl
