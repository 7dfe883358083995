// Tells text from files that only contain text in packed form, whose bytes are no words.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace trainctl {

inline constexpr size_t kTextStartBytes = 8;

/// Throws SpecError (dataset.path) if the first bytes of a file show that it is not plain text: PDF, Word, zip, gzip,
/// ….
void require_text(std::span<const uint8_t> start, const std::string& path);

}  // namespace trainctl
