// Fingerprints of tensors: a digest of the bits, the norm, and a few projections, from which the distance of two
// tensors can be estimated.
#include "engine/train/files/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/mix_bits.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
T take(std::string_view& bytes) {
  check(bytes.size() >= sizeof(T), "the fingerprints of a rank are whole");
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

/// JSON has no numbers that are not finite.
Json finite_json(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
double finite_of(const Json& json) {
  return json.is_number() ? json.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

void Fingerprint::add(int64_t first, std::span<const float> values) {
  uint64_t sum = 0;
  double of_squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto place = static_cast<uint64_t>(first) + i;
    const uint64_t random = mix_bits(place + 0x9e3779b97f4a7c15U);
    sum += mix_bits(random ^ std::bit_cast<uint32_t>(values[i]));
    const double x = values[i];
    of_squares += x * x;
    for (size_t k = 0; k < kProjections; ++k) projections[k] += (random >> k & 1) != 0 ? x : -x;
  }
  digest += sum;
  squares += of_squares;
}

void Fingerprint::add(const Fingerprint& other) {
  digest += other.digest;
  squares += other.squares;
  for (size_t k = 0; k < kProjections; ++k) projections[k] += other.projections[k];
}

double Fingerprint::norm() const { return std::sqrt(squares); }

double relative_distance(const Fingerprint& a, const Fingerprint& b) {
  if (same_bits(a, b)) return 0;
  double sum = 0;
  for (size_t k = 0; k < kProjections; ++k) {
    const double difference = a.projections[k] - b.projections[k];
    sum += difference * difference;
  }
  const double scale = std::max({a.norm(), b.norm(), std::numeric_limits<double>::min()});
  const double distance = std::sqrt(sum / kProjections) / scale;
  return std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
}

std::string to_bytes(const Fingerprints& fingerprints) {
  std::string bytes;
  append(bytes, static_cast<uint64_t>(fingerprints.size()));
  for (const auto& [name, print] : fingerprints) {
    append(bytes, static_cast<uint64_t>(name.size()));
    bytes += name;
    append(bytes, print);
  }
  return bytes;
}

Fingerprints fingerprints_of_bytes(std::string_view bytes) {
  Fingerprints fingerprints;
  const auto count = take<uint64_t>(bytes);
  for (uint64_t i = 0; i < count; ++i) {
    const auto size = take<uint64_t>(bytes);
    check(bytes.size() >= size, "the fingerprints of a rank are whole");
    std::string name(bytes.substr(0, size));
    bytes.remove_prefix(size);
    fingerprints.emplace(std::move(name), take<Fingerprint>(bytes));
  }
  return fingerprints;
}

std::string fingerprint_line(int64_t step, const Fingerprints& fingerprints) {
  Json tensors = Json::object();
  for (const auto& [name, print] : fingerprints) {
    Json row = {fmt::format("{:016x}", print.digest), finite_json(print.squares)};
    for (const double projection : print.projections) row.push_back(finite_json(projection));
    tensors[name] = std::move(row);
  }
  return Json({{"step", step}, {"tensors", std::move(tensors)}}).dump() + "\n";
}

std::map<int64_t, Fingerprints> read_fingerprints(const std::string& path) {
  const std::string text = read_whole_file(path);
  std::map<int64_t, Fingerprints> steps;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    ++number;
    try {
      const Json line = Json::parse(text.substr(at, end - at));
      Fingerprints& tensors = steps[line.at("step").get<int64_t>()];
      tensors.clear();
      for (const auto& [name, row] : line.at("tensors").items()) {
        Fingerprint& print = tensors[name];
        print.digest = std::stoull(row.at(0).get<std::string>(), nullptr, 16);
        print.squares = finite_of(row.at(1));
        for (size_t k = 0; k < kProjections; ++k) print.projections[k] = finite_of(row.at(2 + k));
      }
    } catch (const std::exception& error) {
      throw EnvError(fmt::format("{}:{}: not a line of fingerprints: {}", path, number, error.what()));
    }
    at = end + 1;
  }
  return steps;
}

}  // namespace trainctl
