// A policy of two tanh layers and linear heads for actions and value: forward pass, gradients, distributions; one core.
//
// Matrices are row-major; widths are padded to whole vectors. Free of torch's headers, which take half a minute to
// compile. Other files follow this one in the same unit.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

using Real = REAL;  // float or double, by a flag of the compiler

namespace {

enum Part { kW1, kB1, kW2, kB2, kActorW, kActorB, kCriticW, kCriticB, kLogStd, kParts };

// As in ppo_mlp.py, field by field; so are the structures of other files.
struct Policy {
    int64_t inputs, hidden, outputs, groups;  // outputs: logits, or components of the mean
    const int64_t* sizes;                     // logits of each discrete action; null: a normal distribution
    Real* weights[kParts];
};

constexpr double kLogSqrt2Pi = 0.91893853320467274178;

constexpr int64_t kLanes = 64 / sizeof(Real);

int64_t padded(int64_t n) {
    return (n + kLanes - 1) / kLanes * kLanes;
}

// C += A B for M rows and kLanes columns; A's element (i, p) is a[i * row + p * column].
template <int M>
void tile(const Real* a, int64_t row, int64_t column, const Real* b, int64_t n, Real* c, int64_t k) {
    typedef Real Vector __attribute__((vector_size(64)));
    Vector sum[M], x;
    for (int i = 0; i < M; ++i) std::memcpy(&sum[i], c + i * n, sizeof(Vector));
    for (int64_t p = 0; p < k; ++p) {
        std::memcpy(&x, b + p * n, sizeof(Vector));
        for (int i = 0; i < M; ++i) sum[i] += a[i * row + p * column] * x;
    }
    for (int i = 0; i < M; ++i) std::memcpy(c + i * n, &sum[i], sizeof(Vector));
}

// C [m, n] += A [m, k] B [k, n]; n is a multiple of kLanes.
void add_product(const Real* a, int64_t row, int64_t column, const Real* b, Real* c, int64_t m, int64_t n, int64_t k) {
    for (int64_t j = 0; j < n; j += kLanes) {
        int64_t i = 0;
        for (; i + 6 <= m; i += 6) tile<6>(a + i * row, row, column, b + j, n, c + i * n + j, k);
        for (; i < m; ++i) tile<1>(a + i * row, row, column, b + j, n, c + i * n + j, k);
    }
}

// tanh(x) = 1 - 2 / (e^2x + 1), where e^y = 2^n e^r with |r| <= ln 2 / 2 and a Taylor polynomial of e^r; vectorises.
inline Real tanh_of(Real x) {
    if constexpr (sizeof(Real) == 8) return std::tanh(x);
    const float y = std::min(std::max(2 * float(x), -30.0f), 30.0f);
    const float n = (y * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounds to an integer
    const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;    // ln 2 in two parts
    const float e = 1 + r * (1 + r / 2 * (1 + r / 3 * (1 + r / 4 * (1 + r / 5 * (1 + r / 6 * (1 + r / 7))))));
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof(power));
    return 1 - 2 / (e * power + 1);
}

void add_rows(const Real* x, int64_t rows, int64_t stride, int64_t columns, Real* out) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) out[j] += x[i * stride + j];
}

// The network and what it computed for some observations.
struct Pass {
    int64_t rows, in, hidden, out;                  // in, out: padded; the value is the output after the actor's
    std::vector<Real> w1, w2, heads, x, h1, h2, y;     // weights transposed; x to y: [rows, width]
    std::vector<Real> d_y, d_h2, d_h1, d_w1, d_heads;  // gradients

    void start(const Policy& net, int64_t count) {
        rows = count, in = padded(net.inputs), hidden = net.hidden, out = padded(net.outputs + 1);
        w1.assign(in * hidden, 0), w2.resize(hidden * hidden), heads.assign(hidden * out, 0);
        for (int64_t i = 0; i < hidden; ++i) {
            for (int64_t j = 0; j < net.inputs; ++j) w1[j * hidden + i] = net.weights[kW1][i * net.inputs + j];
            for (int64_t j = 0; j < hidden; ++j) w2[j * hidden + i] = net.weights[kW2][i * hidden + j];
            for (int64_t j = 0; j < net.outputs; ++j) heads[i * out + j] = net.weights[kActorW][j * hidden + i];
            heads[i * out + net.outputs] = net.weights[kCriticW][i];
        }
        x.assign(rows * in, 0), h1.resize(rows * hidden), h2.resize(rows * hidden), y.assign(rows * out, 0);
    }

    void layer(const std::vector<Real>& x, int64_t in, const std::vector<Real>& w, const Real* bias,
               std::vector<Real>& h) const {
        for (int64_t b = 0; b < rows; ++b) std::copy(bias, bias + hidden, h.begin() + b * hidden);
        add_product(x.data(), in, 1, w.data(), h.data(), rows, hidden, in);
        for (Real& value : h) value = tanh_of(value);
    }

    void forward(const Policy& net) {
        layer(x, in, w1, net.weights[kB1], h1);
        layer(h1, hidden, w2, net.weights[kB2], h2);
        for (int64_t b = 0; b < rows; ++b) {
            std::copy(net.weights[kActorB], net.weights[kActorB] + net.outputs, y.begin() + b * out);
            y[b * out + net.outputs] = net.weights[kCriticB][0];
        }
        add_product(h2.data(), hidden, 1, heads.data(), y.data(), rows, out, hidden);
    }

    // d_y holds the gradients by the outputs.
    void backward(const Policy& net, Real* const* to) {
        std::vector<Real>& back = d_heads;  // the heads' weights [out, hidden] first, their gradients later
        back.assign(out * hidden, 0);
        for (int64_t i = 0; i < hidden; ++i)
            for (int64_t j = 0; j < out; ++j) back[j * hidden + i] = heads[i * out + j];
        d_h2.assign(rows * hidden, 0), d_h1.assign(rows * hidden, 0), d_w1.assign(hidden * in, 0);
        add_product(d_y.data(), out, 1, back.data(), d_h2.data(), rows, hidden, out);
        for (int64_t i = 0; i < rows * hidden; ++i) d_h2[i] *= 1 - h2[i] * h2[i];
        add_product(d_h2.data(), hidden, 1, net.weights[kW2], d_h1.data(), rows, hidden, hidden);
        for (int64_t i = 0; i < rows * hidden; ++i) d_h1[i] *= 1 - h1[i] * h1[i];

        back.assign(out * hidden, 0);
        add_product(d_y.data(), 1, out, h2.data(), back.data(), out, hidden, rows);
        add_rows(back.data(), 1, 0, net.outputs * hidden, to[kActorW]);
        add_rows(back.data() + net.outputs * hidden, 1, 0, hidden, to[kCriticW]);
        add_product(d_h2.data(), 1, hidden, h1.data(), to[kW2], hidden, hidden, rows);
        add_product(d_h1.data(), 1, hidden, x.data(), d_w1.data(), hidden, in, rows);
        for (int64_t i = 0; i < hidden; ++i) add_rows(&d_w1[i * in], 1, 0, net.inputs, to[kW1] + i * net.inputs);
        add_rows(d_y.data(), rows, out, net.outputs, to[kActorB]);
        add_rows(d_y.data() + net.outputs, rows, out, 1, to[kCriticB]);
        add_rows(d_h2.data(), rows, hidden, hidden, to[kB2]);
        add_rows(d_h1.data(), rows, hidden, hidden, to[kB1]);
    }
};

// Log probabilities of `size` logits, in place; returns their entropy.
Real normalize(Real* logits, int64_t size) {
    const Real most = *std::max_element(logits, logits + size);
    Real total = 0, entropy = 0;
    for (int64_t j = 0; j < size; ++j) total += std::exp(logits[j] - most);
    const Real shift = most + std::log(total);
    for (int64_t j = 0; j < size; ++j) {
        logits[j] -= shift;
        entropy -= std::exp(logits[j]) * logits[j];
    }
    return entropy;
}

// Return the log probability of an action and the entropy; logits become log probabilities.
Real log_prob(const Policy& net, Real* y, const void* action, Real& entropy) {
    Real result = entropy = 0;
    if (net.sizes) {
        const int64_t* chosen = static_cast<const int64_t*>(action);
        for (int64_t g = 0; g < net.groups; y += net.sizes[g++]) {
            entropy += normalize(y, net.sizes[g]);
            result += y[chosen[g]];
        }
        return result;
    }
    for (int64_t j = 0; j < net.outputs; ++j) {
        const Real z = (static_cast<const Real*>(action)[j] - y[j]) / std::exp(net.weights[kLogStd][j]);
        result -= z * z / 2 + net.weights[kLogStd][j] + Real(kLogSqrt2Pi);
        entropy += net.weights[kLogStd][j] + Real(kLogSqrt2Pi) + Real(0.5);
    }
    return result;
}

// Replace the outputs by the gradients of by_log_prob log p(action) + by_entropy entropy.
void backward(const Policy& net, const Real* y, const void* action, Real by_log_prob, Real by_entropy, Real* d_y,
              Real* d_log_std) {
    if (net.sizes) {
        const int64_t* chosen = static_cast<const int64_t*>(action);
        for (int64_t g = 0; g < net.groups; ++g) {
            Real entropy = 0;
            for (int64_t j = 0; j < net.sizes[g]; ++j) entropy -= std::exp(y[j]) * y[j];
            for (int64_t j = 0; j < net.sizes[g]; ++j) {
                const Real p = std::exp(y[j]);
                d_y[j] = by_log_prob * (Real(j == chosen[g]) - p) - by_entropy * p * (y[j] + entropy);
            }
            y += net.sizes[g], d_y += net.sizes[g];
        }
        return;
    }
    for (int64_t j = 0; j < net.outputs; ++j) {
        const Real std = std::exp(net.weights[kLogStd][j]), z = (static_cast<const Real*>(action)[j] - y[j]) / std;
        d_y[j] = by_log_prob * z / std;
        d_log_std[j] += by_log_prob * (z * z - 1) + by_entropy;
    }
}

}  // namespace

// Sample actions by noise: exponential for logits, normal for a mean.
extern "C" void act(const Policy* policy, const Real* obs, const Real* noise, int64_t rows, void* actions,
                    Real* log_probs, Real* values) {
    const Policy& net = *policy;
    thread_local Pass pass;
    pass.start(net, rows);
    for (int64_t b = 0; b < rows; ++b)
        std::copy(obs + b * net.inputs, obs + (b + 1) * net.inputs, pass.x.begin() + b * pass.in);
    pass.forward(net);
    for (int64_t b = 0; b < rows; ++b) {
        Real entropy, *y = &pass.y[b * pass.out];
        const Real* drawn = noise + b * net.outputs;
        values[b] = y[net.outputs];
        if (!net.sizes) {
            Real* action = static_cast<Real*>(actions) + b * net.outputs;
            for (int64_t j = 0; j < net.outputs; ++j) action[j] = y[j] + std::exp(net.weights[kLogStd][j]) * drawn[j];
            log_probs[b] = log_prob(net, y, action, entropy);
            continue;
        }
        int64_t* action = static_cast<int64_t*>(actions) + b * net.groups;
        const Real* logits = y;  // the argmax of p / e is a sample of p
        for (int64_t g = 0; g < net.groups; logits += net.sizes[g], drawn += net.sizes[g], ++g) {
            action[g] = 0;
            Real best = -INFINITY;
            for (int64_t j = 0; j < net.sizes[g]; ++j) {
                const Real score = logits[j] - std::log(drawn[j]);
                if (score > best) best = score, action[g] = j;
            }
        }
        log_probs[b] = log_prob(net, y, action, entropy);
    }
}
