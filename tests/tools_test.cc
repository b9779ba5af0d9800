// The command-line tool's parts that need no clock: grammars, counts of visible pairs, pictures, result files.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "attention/cuda_state.h"
#include "girih/context.h"
#include "girih/error.h"
#include "tools/attention_data.h"
#include "tools/bench_report.h"
#include "tools/lengths.h"
#include "tools/output.h"
#include "tools/plan_report.h"

namespace girih::tools {
namespace {

using Lens = std::vector<std::int64_t>;

template <typename F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(Lengths, Grammar) {
  EXPECT_EQ(parse_lengths("", "w"), Lens{});
  EXPECT_EQ(parse_lengths("7", "w"), Lens{7});
  EXPECT_EQ(parse_lengths("1,1,512", "w"), (Lens{1, 1, 512}));
  EXPECT_EQ(parse_lengths("1x3,512x2,0", "w"), (Lens{1, 1, 1, 512, 512, 0}));
  EXPECT_EQ(parse_lengths("5x0", "w"), Lens{});
  EXPECT_EQ(parse_lengths("2147483647", "w"), Lens{2147483647});
}

TEST(Lengths, Refusals) {
  for (const char* text : {"-1",
                           "1,",
                           ",1",
                           "1x",
                           "x2",
                           "1x-2",
                           "a",
                           "1 ",
                           "1.5",
                           "2147483648",
                           "1x1048577",
                           "1x1048576,1",
                           "zipf:",
                           "zipf:mean=4",
                           "zipf:mean=4,n=2,n=2",
                           "zipf:mean=4,n=2,q=1",
                           "zipf:mean=inf,n=2",
                           "zipf:mean=4,n=1.5",
                           "zipf:mean=4,n=2,s=9",
                           "uniform:min=5,max=4,n=1",
                           "normal:mean=1"}) {
    const std::string message = refusal([&] { parse_lengths(text, "--kv-lens"); });
    EXPECT_EQ(message.rfind("--kv-lens: ", 0), 0U) << text << " -> " << message;
  }
}

TEST(Lengths, ZipfHasItsMeanAndShape) {
  Lens lens = parse_lengths("zipf:mean=4096,n=64", "w");
  ASSERT_EQ(lens.size(), 64U);
  EXPECT_NEAR(std::accumulate(lens.begin(), lens.end(), 0.0) / 64, 4096, 1);
  EXPECT_EQ(lens, parse_lengths("zipf:mean=4096,n=64,seed=1,s=1", "w"));
  EXPECT_NE(lens, parse_lengths("zipf:mean=4096,n=64,seed=2", "w"));
  std::sort(lens.rbegin(), lens.rend());
  EXPECT_NEAR(static_cast<double>(lens[0]) / static_cast<double>(lens[1]), 2.0, 1e-3);
  EXPECT_NEAR(static_cast<double>(lens[0]) / static_cast<double>(lens[9]), 10.0, 1e-2);
}

TEST(Lengths, UniformStaysInItsRange) {
  const Lens lens = parse_lengths("uniform:min=3,max=5,n=300", "w");
  EXPECT_EQ(std::set<std::int64_t>(lens.begin(), lens.end()), (std::set<std::int64_t>{3, 4, 5}));
}

TEST(NamedVariant, VisiblePairsMatchTheDefinition) {
  struct Row {
    const char* mask;
    bool (*visible)(std::int64_t q, std::int64_t k);
  };
  const Row rows[] = {
      {"full", [](std::int64_t, std::int64_t) { return true; }},
      {"causal", [](std::int64_t q, std::int64_t k) { return k <= q; }},
      {"window:left=5", [](std::int64_t q, std::int64_t k) { return k >= q - 5 && k <= q; }},
      {"window:left=-1,right=2", [](std::int64_t q, std::int64_t k) { return k <= q + 2; }},
      {"window:left=3,right=-1", [](std::int64_t q, std::int64_t k) { return k >= q - 3; }},
      {"sliding_window:size=4", [](std::int64_t q, std::int64_t k) { return k > q - 4 && k <= q; }},
      {"chunked_local:size=8", [](std::int64_t q, std::int64_t k) { return k / 8 == q / 8 && k <= q; }},
      {"streaming:first=2,left=3", [](std::int64_t q, std::int64_t k) { return (k < 2 || k >= q - 3) && k <= q; }},
      {"document:size=6", [](std::int64_t q, std::int64_t k) { return k / 6 == q / 6; }},
  };
  for (const Row& row : rows) {
    for (const auto& [qo_len, kv_len] : std::vector<std::pair<int, int>>{{1, 1}, {1, 40}, {20, 20}, {13, 37}, {0, 5}}) {
      double expected = 0;
      for (int q = kv_len - qo_len; q < kv_len; ++q) {
        for (int k = 0; k < kv_len; ++k) expected += row.visible(q, k) ? 1 : 0;
      }
      double keys = 0;
      for (int k = 0; k < kv_len; ++k) {
        bool seen = false;
        for (int q = kv_len - qo_len; q < kv_len; ++q) seen = seen || row.visible(q, k);
        keys += seen ? 1 : 0;
      }
      EXPECT_EQ(visible_keys(parse_call(row.mask, "w"), qo_len, kv_len), keys) << row.mask << " " << qo_len << " " << kv_len;
      EXPECT_EQ(visible_pairs(parse_call(row.mask, "w"), qo_len, kv_len), expected) << row.mask << " " << qo_len << " " << kv_len;
    }
  }
}

TEST(NamedVariant, UnknownNamesListWhatThereIs) {
  EXPECT_NE(refusal([] { make_variant({"casual", {}}, {"none", {}}, {}); }).find("causal"), std::string::npos);
  EXPECT_NE(refusal([] { make_variant({"full", {}}, {"softcap", {}}, {}); }).find("soft_cap"), std::string::npos);
}

/// Tags open and close in order and attribute values are quoted: enough to catch unescaped text.
bool well_formed(const std::string& markup) {
  std::vector<std::string> open;
  for (std::size_t at = 0; (at = markup.find_first_of("<>", at)) != std::string::npos;) {
    if (markup[at] == '>') return false;
    const std::size_t end = markup.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = markup.substr(at + 1, end - at - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0 || tag.find('<') != std::string::npos) return false;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end + 1;
  }
  return open.empty();
}

TEST(Picture, IsWellFormedAndShowsEveryUnit) {
  const std::vector<WorkBar> bars = {{0, 0, 10, 0, "a < b & \"c\""}, {0, 10, 5, 1, "second"}, {2, 0, 7, 1, "third"}};
  const std::string svg = work_svg(bars, 3, "x > y");
  EXPECT_TRUE(well_formed(svg)) << svg;
  for (const char* text : {">0</text>", ">1</text>", ">2</text>", "a &lt; b &amp; &quot;c&quot;", "second", "third", "x &gt; y"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
  EXPECT_TRUE(well_formed(work_svg({}, 0, "")));
}

TEST(Picture, NarrowBarsAreJoined) {
  std::vector<WorkBar> bars;
  for (int i = 0; i < 100000; ++i) bars.push_back({0, i, 1, 0, "item"});
  const std::string svg = work_svg(bars, 1, "many");
  EXPECT_LT(svg.size(), 2000000U);
  EXPECT_TRUE(well_formed(svg));
  EXPECT_NE(svg.find("more)"), std::string::npos);
}

TEST(Picture, BarsOfAPlan) {
  AttentionSpec spec;
  spec.num_qo_heads = 8;
  spec.num_kv_heads = 2;
  const OwnedBatch owned = make_batch(spec, {1, 100, 1}, {4000, 100, 7}, 16, {"causal", {}}, {"none", {}});
  ContextOptions options;
  options.num_workers = 1;
  const Context context(options);
  const Schedule schedule = girih::schedule(context, owned.spec, owned.limits(), {.num_units = 5});
  Plan plan(schedule);
  plan.update(owned.view().batch);
  const attention::PlanView& view = plan.state().view;
  const std::vector<WorkBar> bars = plan_bars(view, 4);
  EXPECT_EQ(std::ssize(bars), plan.info().num_items);
  std::set<int> requests;
  std::int64_t total = 0;
  std::int64_t longest = 0;
  for (const WorkBar& bar : bars) {
    requests.insert(bar.colour);
    total += bar.cost;
    longest = std::max(longest, bar.begin + bar.cost);
  }
  EXPECT_EQ(requests, (std::set<int>{0, 1, 2}));
  EXPECT_EQ(total, plan.info().total_cost);
  EXPECT_EQ(longest, plan.info().max_unit_cost);
  EXPECT_GE(balance(plan.info(), 5), 1.0);
  const auto lists = list_balances(plan.schedule().state(), view);
  EXPECT_EQ(lists[0].num_units, 5);
  EXPECT_FALSE(lists[0].empty);
  EXPECT_DOUBLE_EQ(lists[0].largest, 5.0 * static_cast<double>(longest) / static_cast<double>(total));
  EXPECT_EQ(lists[1].num_units, 0);
  EXPECT_TRUE(lists[1].empty);
  EXPECT_EQ(list_name({5, 0}, 0), "all");

  // On a GPU each class has a list: one request that fills a unit of 3 of the small tiles' does not count against the large ones'.
  const auto state =
      attention::make_cuda_state(cuda::example_device(90), 0, owned.spec, owned.limits(), {.num_units = 0, .num_sms = 3, .family = ""});
  Plan two_lists{Schedule(state)};
  two_lists.update(owned.view().batch);
  const auto gpu = list_balances(*state, two_lists.state().view);
  EXPECT_EQ(gpu[0].num_units, attention::class_blocks(*state, attention::kSmall));
  EXPECT_EQ(gpu[1].num_units, attention::class_blocks(*state, attention::kLarge));
  for (const ListBalance& list : gpu) {
    EXPECT_FALSE(list.empty);
    EXPECT_GE(list.largest, 1.0);
    EXPECT_LT(list.largest, 2.0);
  }
  EXPECT_EQ(list_name({gpu[0].num_units, gpu[1].num_units}, 1), "large");
  EXPECT_EQ(request_of_row(view, 0, 4), 0);
  EXPECT_EQ(request_of_row(view, 4, 4), 1);
  EXPECT_EQ(request_of_row(view, 101 * 4, 4), 2);
  EXPECT_EQ(request_of_row(view, 102 * 4, 4), -1);
}

TEST(BenchCases, NamesAreUniqueAndFiltersChoose) {
  const std::vector<std::string> names = attention_case_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  BenchOptions options;
  EXPECT_EQ(choose_cases(options, names), names);
  options.filter = "decode-mla*b2-*";
  EXPECT_EQ(choose_cases(options, names), std::vector<std::string>{"decode-mla-bf16-b2-kv2048"});
  options.filter = "nothing";
  EXPECT_NE(refusal([&] { choose_cases(options, names); }).find("decode-mla-bf16-b2-kv2048"), std::string::npos);
}

TEST(BenchCases, TwinsAreOtherCasesOfTheTable) {
  const std::vector<std::string> names = attention_case_names();
  for (const cases::ServingCase& c : cases::serving_cases()) {
    for (const std::string& twin : c.twins) {
      EXPECT_NE(twin, c.name);
      EXPECT_EQ(std::count(names.begin(), names.end(), twin), 1) << c.name << " is compared with " << twin;
    }
  }
}

TEST(BenchCases, DescribesWhatItLists) {
  const nlohmann::ordered_json described = describe_attention_cases({"prefix4096-gqa-bf16-b16-cascade", "decode-gqa-i8-b2-kv4096"});
  ASSERT_EQ(described.size(), 2U);
  EXPECT_EQ(described[0]["case"], "decode-gqa-i8-b2-kv4096");
  EXPECT_EQ(described[0]["kv_dtype"], "i8");
  EXPECT_EQ(described[0]["kv_lens"], (nlohmann::ordered_json{4096, 4096}));
  EXPECT_EQ(described[1]["shared_prefix"], 4096);
  EXPECT_EQ(described[1]["cascade"], true);
}

TEST(BenchCases, BytesAndFlops) {
  cases::ServingCase c;
  c.spec.num_qo_heads = 4;
  c.spec.num_kv_heads = 2;
  c.spec.head_dim_qk = 64;
  c.spec.head_dim_vo = 32;
  c.qo_lens = {1, 1};
  c.kv_lens = {48, 32};
  EXPECT_EQ(useful_flops(c), 80 * 4 * 2.0 * 96);
  EXPECT_EQ(useful_bytes(c), 80 * 2 * 96 * 2 + 2 * 4 * 96 * 2);
  c.shared_prefix = 16;
  EXPECT_EQ(useful_bytes(c), 64 * 2 * 96 * 2 + 2 * 4 * 96 * 2);
  c.spec.v_is_k = true;
  EXPECT_EQ(useful_bytes(c), 64 * 2 * 64 * 2 + 2 * 4 * 96 * 2);
  c.shared_prefix = 0;
  c.mask = "sliding_window:size=40";
  EXPECT_EQ(useful_bytes(c), 72 * 2 * 64 * 2 + 2 * 4 * 96 * 2);
}

TEST(BenchReport, FormOfTheResultFile) {
  BenchResult result;
  result.machine = machine_facts("avx2", 2);
  result.rows.push_back(
      {.op = "attention", .name = "a<b", .backend = "cpu", .seconds = 0.5, .bytes = 10, .flops = 20, .extra = {{"balance", 1.5}}});
  const nlohmann::ordered_json json = bench_json(result);
  for (const char* key : {"machine", "commit", "rows"}) EXPECT_TRUE(json.contains(key)) << key;
  for (const char* key :
       {"op", "case", "backend", "seconds", "bytes", "flops", "roofline_fraction", "plan_seconds", "host_seconds", "balance", "peers"}) {
    EXPECT_TRUE(json["rows"][0].contains(key)) << key;
  }
  EXPECT_EQ(json["machine"]["target"], "avx2");
  EXPECT_TRUE(json["rows"][0]["peers"].is_array());
  EXPECT_NE(bench_html(result).find("a&lt;b"), std::string::npos);
  EXPECT_EQ(bench_html(result).find("http"), std::string::npos);
}

TEST(Output, FailuresNameTheFile) {
  try {
    write_file("/nonexistent/out.json", "x");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("/nonexistent/out.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace girih::tools
