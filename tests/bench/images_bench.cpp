// Measures how many photos one core reads, in images per second: bench_images FOLDER [SECONDS] reads the JPEGs there;
// --write FOLDER makes 48 of 500 x 375 pixels at quality 85, of smooth light, edges and noise, first. images.py runs it
// compared with libjpeg-turbo's tjbench and, where they are installed, Pillow and torchvision.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "engine/train/data/sample_transforms.h"
#include "tests/train/image_files.h"

using namespace trainctl;

namespace {

constexpr int kPhotos = 48;

void write_photos(const std::string& folder) {
  std::filesystem::create_directories(folder);
  for (int i = 0; i < kPhotos; ++i) {
    Picture photo{375, 500, 3, {}};
    SampleRng rng(1, 0, i);
    double wave[6][4];
    for (auto& w : wave)
      w[0] = rng.uniform(-0.08, 0.08), w[1] = rng.uniform(-0.08, 0.08), w[2] = rng.uniform(0, 6),
      w[3] = rng.uniform(5, 30);
    double edge[12][6];
    for (auto& e : edge) {
      e[0] = rng.uniform(-1, 1), e[1] = rng.uniform(-1, 1), e[2] = rng.uniform(-200, 400);
      for (int c = 0; c < 3; ++c) e[3 + c] = rng.uniform(-35, 35);
    }
    const double grain = rng.uniform(14, 30);
    for (int64_t y = 0; y < photo.height; ++y) {
      for (int64_t x = 0; x < photo.width; ++x) {
        const auto v = static_cast<double>(y), u = static_cast<double>(x);
        double light = 120;
        for (const auto& w : wave) light += w[3] * std::sin(w[0] * v + w[1] * u + w[2]);
        const double noise = rng.uniform(-grain, grain) + rng.uniform(-grain, grain);
        for (int c = 0; c < 3; ++c) {
          double value = light + noise;
          for (const auto& e : edge) value += e[0] * v + e[1] * u > e[2] ? e[3 + c] : 0;
          photo.pixels.push_back(static_cast<uint8_t>(std::clamp(value, 0.0, 255.0)));
        }
      }
    }
    const FileBytes file = write_jpeg(photo);
    std::ofstream(fmt::format("{}/{:02}.jpg", folder, i), std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
  }
}

std::vector<FileBytes> read_photos(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".jpg") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<FileBytes> files;
  for (const std::string& path : paths) {
    std::ifstream in(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    files.emplace_back(first, first + bytes.size());
  }
  return files;
}

/// The best of three parts, so that other work on the machine counts less.
void report(const char* what, double seconds, size_t files, const std::function<void(size_t file, int64_t pass)>& run) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int part = 0; part < 3; ++part) {
    const auto start = Clock::now();
    int64_t images = 0;
    double passed = 0;
    for (int64_t pass = 0; passed < seconds / 3; ++pass) {
      for (size_t i = 0; i < files; ++i, ++images) run(i, pass);
      passed = std::chrono::duration<double>(Clock::now() - start).count();
    }
    best = std::max(best, static_cast<double>(images) / passed);
  }
  fmt::print("{:<60} {:8.0f} images/s\n", what, best);
}

TransformSpec transform(const char* name, Attrs attrs = {}) { return {name, std::move(attrs), "dataset.transforms"}; }

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  if (!args.empty() && args[0] == "--write") {
    args.erase(args.begin());
    if (!args.empty()) write_photos(args[0]);
  }
  if (args.empty()) return fmt::print(stderr, "usage: bench_images [--write] FOLDER [SECONDS]\n"), 2;
  const double seconds = args.size() > 1 ? std::stod(args[1]) : 3;
  const std::vector<FileBytes> files = read_photos(args[0]);
  if (files.empty()) return fmt::print(stderr, "no JPEGs in {}\n", args[0]), 2;
  size_t bytes = 0;
  for (const FileBytes& file : files) bytes += file.size();
  fmt::print("{} photos of {} KB on average\n", files.size(), bytes / files.size() / 1000);

  const std::vector<TransformSpec> crop = {transform("random_resized_crop", {{"size", Ints{224, 224}}})};
  std::vector<TransformSpec> training = crop;
  training.push_back(transform("horizontal_flip"));
  const std::vector<TransformSpec> last = {transform("to_float"),
                                           transform("normalize", {{"mean", std::vector<double>{0.485, 0.456, 0.406}},
                                                                   {"std", std::vector<double>{0.229, 0.224, 0.225}}}),
                                           transform("hwc2chw")};
  training.insert(training.end(), last.begin(), last.end());
  std::vector<TransformSpec> jittered = training;
  jittered.insert(
      jittered.begin() + 2,
      transform("color_jitter", {{"brightness", 0.4}, {"contrast", 0.4}, {"saturation", 0.4}, {"hue", 0.1}}));

  const SampleType photos{ElementType::u8, {kAnySize, kAnySize, 3}};
  TransformScratch scratch;
  Image image;
  std::vector<float> out(3 * 224 * 224);
  report("header", seconds, files.size(), [&](size_t i, int64_t) { image_size(files[i], "photo"); });
  report("decode", seconds, files.size(), [&](size_t i, int64_t) { decode_image(files[i], "photo", {}, image); });
  const auto chain_of = [&](const char* what, const std::vector<TransformSpec>& specs) {
    const SampleTransforms chain(specs, photos);
    report(what, seconds, files.size(), [&](size_t i, int64_t pass) {
      SampleRng rng(1, static_cast<uint64_t>(pass), static_cast<int64_t>(i));
      chain.run_encoded(files[i], "photo", rng, scratch, out.data());
    });
  };
  chain_of("decode, random_resized_crop 224", crop);
  chain_of("decode, random_resized_crop, flip, normalize, chw", training);
  chain_of("the same with color_jitter", jittered);
  std::vector<Image> decoded(files.size());
  for (size_t i = 0; i < files.size(); ++i) decode_image(files[i], "photo", {}, decoded[i]);
  const SampleTransforms chain(training, photos);
  report("of decoded photos: random_resized_crop, flip, normalize, chw", seconds, files.size(),
         [&](size_t i, int64_t pass) {
           SampleRng rng(1, static_cast<uint64_t>(pass), static_cast<int64_t>(i));
           chain.run(view_of(decoded[i].view()), rng, scratch, out.data());
         });
  return 0;
}
