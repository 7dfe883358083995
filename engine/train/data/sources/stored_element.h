// The types of numbers in array files, and the elements that a sample gets from them: the table of arrays.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/train/data/source.h"

namespace trainctl {

enum class StoredElement : uint8_t { boolean, u8, i8, u16, i16, i32, u32, i64, f16, bf16, f32, f64 };

std::string_view to_string(StoredElement stored);  ///< "f64"
int64_t byte_size(StoredElement stored);
/// Returns the type that its values are converted to.
ElementType element_type(StoredElement stored);
/// Whole elements with any alignment, little-endian. Throws EnvError, without the place, for a finite f64 that f32
/// cannot hold.
void convert(StoredElement stored, std::span<const uint8_t> from, FieldBytes& out);

/// One element as a double; integers beyond 2^53 lose digits.
double stored_as_double(StoredElement element, const uint8_t* at);

}  // namespace trainctl
