// Files that a safetensors reader must refuse, each with one fault. The reader's tests and the command line's tests use
// the same corpus.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringmark::test {

struct MalformedFile {
  std::string name;  // what is wrong; letters, digits and '_' only
  std::string bytes;
};

inline std::string little_endian(std::uint64_t value) {
  std::string word(8, '\0');
  for (int i = 0; i < 8; ++i) word[static_cast<std::size_t>(i)] = static_cast<char>((value >> (8 * i)) & 0xFFu);
  return word;
}

// Length word, header and `data_bytes` bytes of data.
inline std::string safetensors_bytes(std::string_view header, std::size_t data_bytes) {
  std::string file = little_endian(header.size());
  file += header;
  for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i * 37 % 251);
  return file;
}

// Two matrices, an empty tensor, a scalar and metadata: 8 + header + 52 bytes.
inline std::string valid_safetensors() {
  return safetensors_bytes(R"({"__metadata__":{"chunk_size":"4","note":"caf\u00e9"},)"
                           R"("a":{"dtype":"F32","shape":[4,2],"data_offsets":[0,32]},)"
                           R"("b":{"dtype":"BF16","shape":[4,2],"data_offsets":[32,48]},)"
                           R"("empty":{"dtype":"I64","shape":[0,7],"data_offsets":[48,48]},)"
                           R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[48,52]}}  )",
                           52);
}

inline void add_broken_lengths(std::vector<MalformedFile>& files) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const std::string rest = header + "data";
  files.push_back({"no_bytes", ""});
  files.push_back({"seven_bytes", std::string(7, '\0')});
  files.push_back({"length_0", little_endian(0)});
  files.push_back({"length_0_with_data", little_endian(0) + rest});
  files.push_back({"length_2_to_64_minus_1", little_endian(~std::uint64_t{0}) + rest});
  files.push_back({"length_wraps_when_8_is_added", little_endian(~std::uint64_t{0} - 7) + rest});
  files.push_back({"length_is_int64_min", little_endian(std::uint64_t{1} << 63) + rest});
  files.push_back({"length_above_cap", little_endian(100'000'001) + rest});
  files.push_back({"length_at_cap_above_file", little_endian(100'000'000) + rest});
  files.push_back({"length_one_above_file", little_endian(rest.size() + 1) + rest});
  files.push_back({"length_covers_data", little_endian(rest.size()) + rest});
  files.push_back({"length_one_short", little_endian(header.size() - 1) + rest});
  files.push_back({"big_endian_length", std::string(7, '\0') + static_cast<char>(header.size()) + rest});
}

inline void add_broken_json(std::vector<MalformedFile>& files) {
  const auto add = [&](const char* name, std::string_view header) {
    files.push_back({name, safetensors_bytes(header, 4)});
  };
  const std::string entry = R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  add("blank_header", "        ");
  add("not_json", "a tensor file, I promise");
  add("pickle", "\x80\x02}q");
  add("array_for_object", "[" + entry + "]");
  add("string_for_object", R"("a")");
  add("number_for_object", "17");
  add("null_for_object", "null");
  add("byte_order_mark", "\xEF\xBB\xBF{\"a\":" + entry + "}");
  add("form_feed_before_object", "\f{\"a\":" + entry + "}");
  add("unclosed_object", "{\"a\":" + entry);
  add("text_behind_object", "{\"a\":" + entry + "} {}");
  add("trailing_comma", "{\"a\":" + entry + ",}");
  add("comment", "{/* a */\"a\":" + entry + "}");
  add("single_quotes", "{'a':" + entry + "}");
  add("nul_behind_object", std::string("{\"a\":" + entry + "}") + std::string(3, '\0'));
  add("nul_in_name", std::string("{\"a") + '\0' + "\":" + entry + "}");
  add("escaped_nul_in_name", "{\"a\\u0000\":" + entry + "}");
  add("newline_in_name", "{\"a\nb\":" + entry + "}");
  add("invalid_utf8_in_name", "{\"a\xFF\":" + entry + "}");
  add("overlong_utf8_in_name", "{\"\xC0\xAF\":" + entry + "}");
  add("utf8_surrogate_in_name", "{\"\xED\xA0\x80\":" + entry + "}");
  add("half_surrogate_escape", "{\"\\ud800\":" + entry + "}");
  add("invalid_utf8_in_metadata", "{\"__metadata__\":{\"k\":\"\xFE\"},\"a\":" + entry + "}");
  add("deep_arrays", "{\"a\":" + std::string(100'000, '['));
  std::string objects = "{";
  for (int i = 0; i < 50'000; ++i) objects += "\"a\":{";
  add("deep_objects", objects);
  add("deep_shape", R"({"a":{"dtype":"U8","shape":[[4]],"data_offsets":[0,4]}})");
}

inline void add_broken_schema(std::vector<MalformedFile>& files) {
  const auto add = [&](const char* name, std::string_view header) {
    files.push_back({name, safetensors_bytes(header, 4)});
  };
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  add("tensor_twice", "{" + a + "," + a + "}");
  add("tensor_twice_by_escape", "{" + a + R"(,"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})");
  add("metadata_twice", R"({"__metadata__":{},"__metadata__":{},)" + a + "}");
  add("metadata_key_twice", R"({"__metadata__":{"k":"1","k":"2"},)" + a + "}");
  add("metadata_is_string", R"({"__metadata__":"k",)" + a + "}");
  add("metadata_is_null", R"({"__metadata__":null,)" + a + "}");
  add("metadata_number", R"({"__metadata__":{"topk":8},)" + a + "}");
  add("metadata_null", R"({"__metadata__":{"topk":null},)" + a + "}");
  add("metadata_bool", R"({"__metadata__":{"topk":true},)" + a + "}");
  add("metadata_object", R"({"__metadata__":{"topk":{}},)" + a + "}");
  add("metadata_array", R"({"__metadata__":{"topk":["8"]},)" + a + "}");
  add("tensor_is_number", R"({"a":4})");
  add("tensor_is_null", R"({"a":null})");
  add("tensor_is_array", R"({"a":["U8",[4],[0,4]]})");
  add("tensor_is_empty_object", R"({"a":{}})");
  add("dtype_missing", R"({"a":{"shape":[4],"data_offsets":[0,4]}})");
  add("shape_missing", R"({"a":{"dtype":"U8","data_offsets":[0,4]}})");
  add("offsets_missing", R"({"a":{"dtype":"U8","shape":[4]}})");
  add("unknown_field", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"order":"C"}})");
  add("dtype_twice", R"({"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})");
  add("shape_twice", R"({"a":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})");
  add("offsets_twice", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"data_offsets":[0,4]}})");
  add("dtype_unknown", R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})");
  add("dtype_lower_case", R"({"a":{"dtype":"u8","shape":[4],"data_offsets":[0,4]}})");
  add("dtype_empty", R"({"a":{"dtype":"","shape":[4],"data_offsets":[0,4]}})");
  add("dtype_number", R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})");
  add("dtype_array", R"({"a":{"dtype":["U8"],"shape":[4],"data_offsets":[0,4]}})");
  add("shape_number", R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})");
  add("shape_object", R"({"a":{"dtype":"U8","shape":{"0":4},"data_offsets":[0,4]}})");
  add("shape_float", R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})");
  add("shape_exponent", R"({"a":{"dtype":"U8","shape":[4e0],"data_offsets":[0,4]}})");
  add("shape_negative", R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})");
  add("shape_two_negatives", R"({"a":{"dtype":"U8","shape":[-2,-2],"data_offsets":[0,4]}})");
  add("shape_string", R"({"a":{"dtype":"U8","shape":["4"],"data_offsets":[0,4]}})");
  add("shape_null", R"({"a":{"dtype":"U8","shape":[null],"data_offsets":[0,4]}})");
  add("shape_rank_9", R"({"a":{"dtype":"U8","shape":[4,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})");
  add("offsets_of_1", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4]}})");
  add("offsets_of_3", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})");
  add("offsets_empty", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[]}})");
  add("offsets_negative", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[-4,0]}})");
  add("offsets_float", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4.0]}})");
  add("offsets_string", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":"0,4"}})");
}

inline void add_too_many_tensors(std::vector<MalformedFile>& files) {
  std::string header = "{";
  for (int i = 0; i <= 100'000; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  files.push_back({"too_many_tensors", safetensors_bytes(header + "}", 0)});
}

inline void add_broken_extents(std::vector<MalformedFile>& files) {
  const auto add = [&](const char* name, std::string_view header, std::size_t data_bytes) {
    files.push_back({name, safetensors_bytes(header, data_bytes)});
  };
  add("span_65536_for_32_by_8_f32", R"({"a":{"dtype":"F32","shape":[32,8],"data_offsets":[0,65536]}})", 65536);
  add("span_shorter_than_shape", R"({"a":{"dtype":"F32","shape":[32,8],"data_offsets":[0,4]}})", 4);
  add("span_for_scalar", R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,8]}})", 8);
  add("span_for_empty", R"({"a":{"dtype":"F32","shape":[0,4],"data_offsets":[0,8]}})", 8);
  add("shape_product_2_to_64", R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0);
  add("shape_product_wraps_to_4", R"({"a":{"dtype":"U8","shape":[9223372036854775807,2,2],"data_offsets":[0,4]}})", 4);
  add("shape_times_dtype_overflows", R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0);
  add("shape_overflows_before_zero", R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})",
      0);
  add("shape_2_to_63", R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4);
  add("shape_2_to_64", R"({"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4]}})", 4);
  add("offsets_inverted", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[5,1]}})", 5);
  add("offsets_past_end", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 4);
  add("offsets_far_past_end",
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[9223372036854775803,9223372036854775807]}})", 4);
  add("offsets_2_to_64", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[18446744073709551616,4]}})", 4);
  add("hole_at_start", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8);
  const std::string a = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":)";
  add("hole_between", a + R"({"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", 9);
  add("overlap_by_one", a + R"({"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", 7);
  add("same_range_twice", a + R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  add("range_inside_other", a + R"({"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 4);
  add("empty_inside_other", a + R"({"dtype":"U8","shape":[0],"data_offsets":[2,2]}})", 4);
  add("empty_past_end", a + R"({"dtype":"U8","shape":[0],"data_offsets":[9,9]}})", 4);
  add("one_byte_missing", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3);
  add("one_byte_behind", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5);
  add("data_without_tensors", "{}", 1);
  add("metadata_only_with_data", R"({"__metadata__":{"k":"v"}})", 16);
}

inline std::vector<MalformedFile> malformed_safetensors() {
  std::vector<MalformedFile> files;
  add_broken_lengths(files);
  add_broken_json(files);
  add_broken_schema(files);
  add_too_many_tensors(files);
  add_broken_extents(files);
  return files;
}

}  // namespace ringmark::test
