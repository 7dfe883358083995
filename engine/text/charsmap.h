// The normalizer Precompiled: SentencePiece's table of replacements.
//
//   precompiled_charsmap := base64 of: bytes of the trie (uint32), trie (uint32 units of a double array), replacements
//
// A key's value is the offset of its replacement, which ends with a zero byte.
#pragma once

#include "engine/text/normalizers.h"

namespace trainctl {

Normalizer read_charsmap(const JsonPart& part);

}  // namespace trainctl
