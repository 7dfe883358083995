// Attention whose queries and keys are rows of one sequence, which ranks share (attr kExchangesKeys): a cut of the rows
// cuts q, k and v in the same way, and the compiler inserts the exchange of keys and values. The kernels compute the
// part of one block of keys: its place follows from the operand's offset.
//
//   attention       q, k, v(, mask of all rows) -> out, logs                    as many keys as there are in k
//   attention_grad  dy, q, k, v(, mask), out, logs -> dq, dk, dv                with out and logs of all keys
//
// With the attr kPartOfKeys a row of attention that sees no key has the log kNoKeys instead of 0, and attention_merge
// combines two parts. These kernels know rows by position only: the compiler reorders rows that are stored in the order
// of ranks (row_order.h), or calls the kernels for pieces of them.
#pragma once

#include "engine/ops/kernel_def.h"

namespace trainctl {

inline constexpr const char* kExchangesKeys = "exchanges_keys";
inline constexpr const char* kPartOfKeys = "part_of_keys";
/// Attr: the queries are consecutive rows of a sequence. This holds for a rank whose rows are not balanced
/// (row_order.h).
inline constexpr const char* kConsecutiveRows = "consecutive_rows";
/// The log of a row that sees no key. It is below the log of every row that sees one.
inline constexpr float kNoKeys = -3.0e38f;

/// in: out, logs, out, logs of two blocks of keys -> out, logs of both. With attr last: the log of a row that sees no
/// key becomes 0, as that of attention. The outputs may take the place of the first two inputs.
extern const KernelDef attention_merge_kernel;
/// Rows (dim 1) in the order of ranks (attr row_order) -> the same rows by position; with attr to_order the other way.
extern const KernelDef reorder_rows_kernel;

}  // namespace trainctl
