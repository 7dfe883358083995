// transform_images TRANSFORMS OUT SEED FILE...
//
// Applies a chain of transforms to photos and writes the results as OUT/0.npy, OUT/1.npy, …. TRANSFORMS are written as
// in a job file: "[{resize: {size: [8, 6], method: area}}, hwc2chw]"; "[]" only decodes. SEED is that of random
// transforms. Prints a line for each photo: its height and width, or the error.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/train/data/sample_transforms.h"
#include "tests/equivalence/jax/npy.h"

using namespace trainctl;

namespace {

std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
  return {first, first + bytes.size()};
}

const char* npy_type(ElementType type) {
  return type == ElementType::u8 ? "|u1" : type == ElementType::i32 ? "<i4" : "<f4";
}

void write_decoded(const std::vector<std::byte>& file, const std::string& name, const std::string& out) {
  Image image;
  decode_image(file, name, {}, image);
  const ImageView& view = image.view();
  std::vector<uint8_t> pixels;
  for (int64_t y = 0; y < view.height; ++y) pixels.insert(pixels.end(), view.row(y), view.row(y) + 3 * view.width);
  write_npy(out, "|u1", {view.height, view.width, 3}, pixels.data(), 1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return std::fprintf(stderr, "usage: transform_images TRANSFORMS OUT SEED FILE...\n"), 2;
  const std::string transforms = argv[1], out = argv[2];
  try {
    const JobSpec job = parse_job("dataset: {type: mnist, path: ., transforms: " + transforms +
                                      "}\nnetwork: [{type: flatten}, {type: dense, units: 2}]\n"
                                      "loss: softmax_cross_entropy\noptimizer: {type: sgd, learning_rate: 0.1}\n",
                                  "transforms");
    const std::vector<TransformSpec>& specs = job.dataset.transforms;
    TransformScratch scratch;
    for (int i = 4; i < argc; ++i) {
      const std::vector<std::byte> file = read_file(argv[i]);
      const std::string to = out + "/" + std::to_string(i - 4) + ".npy";
      try {
        const ImageSize size = image_size(file, argv[i]);
        if (specs.empty()) {
          write_decoded(file, argv[i], to);
        } else {
          const SampleTransforms chain(specs, {ElementType::u8, {kAnySize, kAnySize, 3}});
          const SampleType& result = chain.result();
          std::vector<std::byte> values(static_cast<size_t>(num_elements(result.shape) * byte_size(result.type)));
          SampleRng rng(static_cast<uint64_t>(std::atoll(argv[3])), 0, i - 4);
          chain.run_encoded(file, argv[i], rng, scratch, values.data());
          write_npy(to, npy_type(result.type), result.shape, values.data(), byte_size(result.type));
        }
        std::printf("%lld %lld\n", static_cast<long long>(size.height), static_cast<long long>(size.width));
      } catch (const EnvError& error) {
        std::printf("%s\n", error.what());
      }
    }
  } catch (const SpecError& error) {
    for (const Diagnostic& d : error.diagnostics()) std::fprintf(stderr, "%s: %s\n", d.path.c_str(), d.message.c_str());
    return 2;
  }
  return 0;
}
