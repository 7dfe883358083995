// Reads values from a source for tests, and returns the errors that it throws as text.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/data/source.h"
#include "tests/train/scratch_folder.h"

namespace trainctl {

/// Reads all fields of one sample.
inline std::vector<FieldBytes> read_sample(const Source& source, int64_t sample) {
  std::vector<FieldBytes> out(source.fields().size());
  source.read(sample, std::vector<bool>(out.size(), true), out);
  return out;
}

template <class T>
std::vector<T> values_of(const FieldBytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline std::string text_of(const FieldBytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The values of one field of all samples, concatenated; the elements have type T.
template <class T>
std::vector<T> all_values(const Source& source, size_t field) {
  std::vector<T> all;
  for (int64_t sample = 0; sample < source.size(); ++sample)
    for (const T value : values_of<T>(read_sample(source, sample)[field])) all.push_back(value);
  return all;
}

inline std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const SpecError& error) {
    const Diagnostic& d = error.diagnostics().at(0);
    return d.path + ": " + d.message + " (" + d.hint + ")";
  } catch (const EnvError& error) {
    return error.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline ByteVector to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

/// "u8 [3, 32, 32]", "image".
inline std::string to_string(const SourceField& field) {
  if (field.encoding == Encoding::image) return field.name + ": image";
  return field.name + ": " + std::string(to_string(field.type)) + " " + to_string(field.shape);
}
inline std::vector<std::string> fields_of(const Source& source) {
  std::vector<std::string> fields;
  for (const SourceField& field : source.fields()) fields.push_back(to_string(field));
  return fields;
}

using Texts = std::vector<std::string>;

}  // namespace trainctl
