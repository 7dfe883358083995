// libFuzzer target: any text is parsed as a valid checkpoint.json or causes an EnvError. The input also gets a last
// line with the right checksum, so that fuzzing gets past it. An accepted manifest is written and read again as the
// same text.
#include <cstdlib>
#include <string>

#include "engine/base/error.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/files/digest.h"

namespace {

using namespace trainctl;

void parse(const std::string& text) {
  try {
    const Manifest manifest = parse_manifest(text, "fuzz");
    if (!manifest_defect(manifest).empty()) abort();
    const std::string written = to_json(manifest);
    if (to_json(parse_manifest(written, "again")) != written) abort();
    for (const StoredTensor& tensor : manifest.tensors)
      for (const StoredPiece& piece : tensor.pieces) {
        const PieceName name = parse_piece_key(piece_key(tensor.name, tensor.slot, tensor.shape, piece.box));
        if (name.box && (name.box->offset != piece.box.offset || name.box->shape != piece.box.shape)) abort();
      }
  } catch (const EnvError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  parse(text);
  const std::string before = text + ",\n";
  parse(before + "\"checksum\": \"" + digest_of(before) + "\"}\n");
  try {
    parse_piece_key(text);
  } catch (const EnvError&) {
  }
  return 0;
}
