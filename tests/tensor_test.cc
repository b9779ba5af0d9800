// Element type names and sizes, TensorView's constructors, Indices.
#include "girih/tensor.h"

#include <gtest/gtest.h>

#include <string>

#include "girih/error.h"

namespace girih {
namespace {

constexpr DType kAll[] = {DType::f32,   DType::f16,   DType::bf16, DType::e4m3, DType::e5m2, DType::i8,
                          DType::nvfp4, DType::mxfp4, DType::i32,  DType::i64,  DType::u8};

std::string message_of(auto&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(DTypeTest, NamesRoundTrip) {
  for (const DType dtype : kAll) EXPECT_EQ(dtype_from_name(name(dtype)), dtype) << name(dtype);
}

TEST(DTypeTest, UnknownNameListsTheKnown) {
  const std::string text = message_of([] { dtype_from_name("fp8"); });
  EXPECT_NE(text.find("\"fp8\""), std::string::npos) << text;
  for (const DType dtype : kAll) EXPECT_NE(text.find(name(dtype)), std::string::npos) << text;
}

TEST(DTypeTest, OddNumberOfNibblesTakesAWholeByte) {
  EXPECT_EQ(bytes(DType::nvfp4, 15), 8);
  EXPECT_EQ(bytes(DType::mxfp4, 32), 16);
  EXPECT_EQ(bytes(DType::bf16, 3), 6);
  EXPECT_EQ(bytes(DType::e5m2, 3), 3);
  EXPECT_EQ(bytes(DType::f32, 3), 12);
  EXPECT_EQ(bytes(DType::i64, 3), 24);
}

TEST(TensorViewTest, DenseStridesAreRowMajor) {
  float data[24] = {};
  const TensorView view(data, DType::f32, {2, 3, 4});
  EXPECT_EQ(view.rank, 3);
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_EQ(view.strides[1], 4);
  EXPECT_EQ(view.strides[2], 1);
  EXPECT_EQ(view.numel(), 24);
}

TEST(TensorViewTest, KeepsGivenStrides) {
  float data[64] = {};
  const TensorView view(data, DType::f32, {2, 3}, {-5, 0});
  EXPECT_EQ(view.strides[0], -5);
  EXPECT_EQ(view.strides[1], 0);
  EXPECT_EQ(view.numel(), 6);
}

TEST(TensorViewTest, EmptyAndAbsentViewsHaveNoElements) {
  EXPECT_EQ(TensorView(nullptr, DType::f32, {3, 0, 4}).numel(), 0);
  EXPECT_EQ(TensorView().numel(), 0);
  float value = 0;
  EXPECT_EQ(TensorView(&value, DType::f32, {}).numel(), 1);
}

TEST(TensorViewTest, SizesAre64Bit) {
  const TensorView view(nullptr, DType::f16, {1 << 20, 1 << 20, 4});
  EXPECT_EQ(view.numel(), std::int64_t{1} << 42);
  EXPECT_EQ(view.strides[0], std::int64_t{1} << 22);
}

TEST(TensorViewTest, RefusesWhatItCannotDescribe) {
  EXPECT_NE(message_of([] { TensorView(nullptr, DType::f32, {1, 1, 1, 1, 1, 1, 1}); }).find("rank=7"), std::string::npos);
  EXPECT_NE(message_of([] { TensorView(nullptr, DType::f32, {2, -1}); }).find("shape[1]=-1"), std::string::npos);
  EXPECT_NE(message_of([] { TensorView(nullptr, DType::f32, {2, 3}, {1}); }).find("1 strides"), std::string::npos);
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  EXPECT_NE(message_of([] { TensorView(nullptr, DType::f32, {kHuge, kHuge}); }).find("64 bits"), std::string::npos);
  EXPECT_NE(message_of([] { TensorView(nullptr, DType::f32, {kHuge, kHuge}, {0, 0}); }).find("64 bits"), std::string::npos);
}

TEST(TensorViewTest, NumelOfAHandMadeViewDoesNotWrap) {
  TensorView view;
  view.rank = 2;
  view.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  EXPECT_NE(message_of([&] { (void)view.numel(); }).find("64 bits"), std::string::npos);
  view.rank = 3;  // the third extent is 0
  EXPECT_EQ(view.numel(), 0);
}

TEST(IndicesTest, ReadsBothWidths) {
  const std::vector<std::int32_t> narrow{0, 5, 7};
  const std::vector<std::int64_t> wide{0, std::int64_t{1} << 40};
  EXPECT_EQ(Indices(narrow)[2], 7);
  EXPECT_EQ(Indices(narrow).size(), 3);
  EXPECT_EQ(Indices(wide)[1], std::int64_t{1} << 40);
  EXPECT_TRUE(Indices().empty());
}

}  // namespace
}  // namespace girih
