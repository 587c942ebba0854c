//! Test support: how different two colours look, with and without colour vision deficiencies.

#![allow(clippy::unreadable_literal, reason = "numbers stand as they were published")]

use crate::view::svg::plot::N_SERIES;
use crate::view::theme::{Theme, color};

/// A colour vision deficiency, as a matrix on linear RGB. Source: Machado, Oliveira, Fernandes 2009, "A
/// Physiologically-based Model for Simulation of Color Vision Deficiency", the tables for severity 1.0.
const VISIONS: [(&str, [[f64; 3]; 3]); 4] = [
    ("nothing", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    ("protanopia", [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    (
        "deuteranopia",
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    ),
    ("tritanopia", [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
];

/// `#rrggbb` as linear RGB. Source: IEC 61966-2-1.
fn linear(hex: &str) -> [f64; 3] {
    std::array::from_fn(|at| {
        let channel = u8::from_str_radix(&hex[1 + 2 * at..3 + 2 * at], 16).expect("#rrggbb");
        match f64::from(channel) / 255.0 {
            c if c <= 0.04045 => c / 12.92,
            c => ((c + 0.055) / 1.055).powf(2.4),
        }
    })
}

/// The colour as seen with this vision.
fn seen(rgb: [f64; 3], vision: [[f64; 3]; 3]) -> [f64; 3] {
    vision.map(|row| row.iter().zip(rgb).map(|(factor, c)| factor * c).sum::<f64>().clamp(0.0, 1.0))
}

/// Linear RGB as CIE L*a*b* under D65.
fn lab(rgb: [f64; 3]) -> [f64; 3] {
    const XYZ: [[f64; 3]; 3] =
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]];
    const WHITE: [f64; 3] = [0.95047, 1.0, 1.08883];
    let [x, y, z]: [f64; 3] = std::array::from_fn(|at| {
        let sum: f64 = XYZ[at].iter().zip(rgb).map(|(factor, c)| factor * c).sum();
        let t = sum / WHITE[at];
        let edge = 6.0 / 29.0_f64;
        if t > edge.powi(3) { t.cbrt() } else { t / (3.0 * edge.powi(2)) + 4.0 / 29.0 }
    });
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

/// The difference of two colours in L*a*b*; about 2 is just noticeable side by side. Source: Sharma, Wu, Dalal 2005,
/// "The CIEDE2000 Color-Difference Formula: Implementation Notes, Supplementary Test Data, and Mathematical
/// Observations".
fn ciede2000([l1, a1, b1]: [f64; 3], [l2, a2, b2]: [f64; 3]) -> f64 {
    let seventh = |c: f64| (c.powi(7) / (c.powi(7) + 25_f64.powi(7))).sqrt();
    let g = 0.5 * (1.0 - seventh(f64::midpoint(a1.hypot(b1), a2.hypot(b2))));
    let polar = |a: f64, b: f64| {
        let a = (1.0 + g) * a;
        (a.hypot(b), b.atan2(a).to_degrees().rem_euclid(360.0))
    };
    let ((c1, h1), (c2, h2)) = (polar(a1, b1), polar(a2, b2));
    let is_grey = c1 * c2 == 0.0;
    let turn = match h2 - h1 {
        _ if is_grey => 0.0,
        turn if turn > 180.0 => turn - 360.0,
        turn if turn < -180.0 => turn + 360.0,
        turn => turn,
    };
    let (d_l, d_c) = (l2 - l1, c2 - c1);
    let d_h = 2.0 * (c1 * c2).sqrt() * (turn / 2.0).to_radians().sin();
    let (l, c) = (f64::midpoint(l1, l2), f64::midpoint(c1, c2));
    let h = match h1 + h2 {
        sum if is_grey => sum,
        sum if (h1 - h2).abs() <= 180.0 => sum / 2.0,
        sum if sum < 360.0 => f64::midpoint(sum, 360.0),
        sum => f64::midpoint(sum, -360.0),
    };
    let cos = |degrees: f64| degrees.to_radians().cos();
    let t = 1.0 - 0.17 * cos(h - 30.0) + 0.24 * cos(2.0 * h) + 0.32 * cos(3.0 * h + 6.0) - 0.20 * cos(4.0 * h - 63.0);
    let from_50 = (l - 50.0).powi(2);
    let s_l = 1.0 + 0.015 * from_50 / (20.0 + from_50).sqrt();
    let (s_c, s_h) = (1.0 + 0.045 * c, 1.0 + 0.015 * c * t);
    let rotation = 60.0 * (-((h - 275.0) / 25.0).powi(2)).exp();
    let r_t = -rotation.to_radians().sin() * 2.0 * seventh(c);
    let (l, c, h) = (d_l / s_l, d_c / s_c, d_h / s_h);
    (l * l + c * c + h * h + r_t * c * h).sqrt()
}

#[test]
fn everyone_tells_the_series_apart() {
    for theme in [Theme::Light, Theme::Dark] {
        let tokens: Vec<String> = (0..N_SERIES).map(|at| format!("series-{at}")).collect();
        let colors: Vec<&str> = tokens.iter().map(|token| color(token, theme)).collect();
        for (lack, vision) in VISIONS {
            let seen: Vec<[f64; 3]> = colors.iter().map(|hex| lab(self::seen(linear(hex), vision))).collect();
            for one in 0..N_SERIES {
                for other in 0..one {
                    let difference = ciede2000(seen[one], seen[other]);
                    let pair = [colors[one], colors[other]];
                    assert!(difference >= 10.0, "{pair:?} are {difference:.1} apart to eyes that lack {lack}");
                }
            }
        }
        let lightness: Vec<f64> = colors.iter().map(|hex| lab(linear(hex))[0]).collect();
        assert!(lightness.windows(2).all(|pair| pair[1] > pair[0] - 1.0), "from dark to light: {lightness:?}");
        assert!(lightness[N_SERIES - 1] - lightness[0] > 20.0, "also without colours: {lightness:?}");
    }
}

/// All pairs of Sharma et al. 2005, table 1.
#[test]
fn differences_are_those_that_were_published() {
    let pairs = [
        ([50.0, 2.6772, -79.7751], [50.0, 0.0, -82.7485], 2.0425),
        ([50.0, 3.1571, -77.2803], [50.0, 0.0, -82.7485], 2.8615),
        ([50.0, 2.8361, -74.02], [50.0, 0.0, -82.7485], 3.4412),
        ([50.0, -1.3802, -84.2814], [50.0, 0.0, -82.7485], 1.0),
        ([50.0, -1.1848, -84.8006], [50.0, 0.0, -82.7485], 1.0),
        ([50.0, -0.9009, -85.5211], [50.0, 0.0, -82.7485], 1.0),
        ([50.0, 0.0, 0.0], [50.0, -1.0, 2.0], 2.3669),
        ([50.0, -1.0, 2.0], [50.0, 0.0, 0.0], 2.3669),
        ([50.0, 2.49, -0.001], [50.0, -2.49, 0.0009], 7.1792),
        ([50.0, 2.49, -0.001], [50.0, -2.49, 0.001], 7.1792),
        ([50.0, 2.49, -0.001], [50.0, -2.49, 0.0011], 7.2195),
        ([50.0, 2.49, -0.001], [50.0, -2.49, 0.0012], 7.2195),
        ([50.0, -0.001, 2.49], [50.0, 0.0009, -2.49], 4.8045),
        ([50.0, -0.001, 2.49], [50.0, 0.001, -2.49], 4.8045),
        ([50.0, -0.001, 2.49], [50.0, 0.0011, -2.49], 4.7461),
        ([50.0, 2.5, 0.0], [50.0, 0.0, -2.5], 4.3065),
        ([50.0, 2.5, 0.0], [73.0, 25.0, -18.0], 27.1492),
        ([50.0, 2.5, 0.0], [61.0, -5.0, 29.0], 22.8977),
        ([50.0, 2.5, 0.0], [56.0, -27.0, -3.0], 31.903),
        ([50.0, 2.5, 0.0], [58.0, 24.0, 15.0], 19.4535),
        ([50.0, 2.5, 0.0], [50.0, 3.1736, 0.5854], 1.0),
        ([50.0, 2.5, 0.0], [50.0, 3.2972, 0.0], 1.0),
        ([50.0, 2.5, 0.0], [50.0, 1.8634, 0.5757], 1.0),
        ([50.0, 2.5, 0.0], [50.0, 3.2592, 0.335], 1.0),
        ([60.2574, -34.0099, 36.2677], [60.4626, -34.1751, 39.4387], 1.2644),
        ([63.0109, -31.0961, -5.8663], [62.8187, -29.7946, -4.0864], 1.263),
        ([61.2901, 3.7196, -5.3901], [61.4292, 2.248, -4.962], 1.8731),
        ([35.0831, -44.1164, 3.7933], [35.0232, -40.0716, 1.5901], 1.8645),
        ([22.7233, 20.0904, -46.694], [23.0331, 14.973, -42.5619], 2.0373),
        ([36.4612, 47.858, 18.3852], [36.2715, 50.5065, 21.2231], 1.4146),
        ([90.8027, -2.0831, 1.441], [91.1528, -1.6435, 0.0447], 1.4441),
        ([90.9257, -0.5406, -0.9208], [88.6381, -0.8985, -0.7239], 1.5381),
        ([6.7747, -0.2908, -2.4247], [5.8714, -0.0985, -2.2286], 0.6377),
        ([2.0776, 0.0795, -1.135], [0.9033, -0.0636, -0.5514], 0.9082),
    ];
    for (one, other, published) in pairs {
        for found in [ciede2000(one, other), ciede2000(other, one)] {
            assert!((found - published).abs() < 1e-4, "{one:?} and {other:?}: {found:.5}, published {published}");
        }
    }
}
