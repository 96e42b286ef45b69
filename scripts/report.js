// Looks at the page of `vsnoop-lab report` from within a browser (scripts/report.sh). What is there
// and what is wrong, a line each, becomes the text of the page, which the browser prints.
addEventListener("load", () => {
	const found = [];
	const wrong = (what) => found.push(`wrong: ${what}`);
	const quoted = (element) => JSON.stringify(element.textContent.trim().slice(0, 60));
	const place = (element) => element.closest("section")?.id || "head";
	const root = document.documentElement;

	const sections = [...document.querySelectorAll("section")];
	const heights = sections.map((section) => section.offsetHeight);
	found.push(`part: head ${root.scrollHeight - heights.reduce((sum, one) => sum + one, 0)}`);
	sections.forEach((section, number) => found.push(`part: ${section.id} ${heights[number]}`));

	for (const request of performance.getEntriesByType("resource")) wrong(`asks for ${request.name}`);
	for (const error of errors) wrong(`an error: ${error}`);
	if (root.scrollWidth > root.clientWidth + 1)
		wrong(`is ${root.scrollWidth} pixels wide, the window ${root.clientWidth}`);

	for (const plot of document.querySelectorAll("figure svg")) lookAt(plot);

	function lookAt(plot) {
		const box = plot.getBoundingClientRect();
		const texts = [...plot.querySelectorAll("text")].filter((text) => text.textContent.trim());
		const name = `${place(plot)}: plot ${texts.length ? quoted(texts[0]) : "without a title"}`;
		if (box.width < 100 || box.height < 100) wrong(`${name} has ${box.width} x ${box.height}`);
		const boxes = texts.map((text) => text.getBoundingClientRect());
		boxes.forEach((one, number) => {
			// A pixel of rounding.
			if (one.left < box.left - 1 || one.right > box.right + 1 ||
				one.top < box.top - 1 || one.bottom > box.bottom + 1)
				wrong(`${name}: ${quoted(texts[number])} is cut off`);
			// Boxes of glyphs have some room above and below them.
			const apart = (other) =>
				other.left > one.right - 2 || other.right < one.left + 2 ||
				other.top > one.bottom - one.height / 3 || other.bottom < one.top + one.height / 3;
			const under = boxes.findIndex((other, later) => later > number && !apart(other));
			if (under >= 0) wrong(`${name}: ${quoted(texts[number])} is on ${quoted(texts[under])}`);
			// Two marks of an axis.
			const isWhole = (text) => /^\d+$/.test(text.textContent.trim());
			const same = boxes.findIndex((other, later) => later > number &&
				isWhole(texts[number]) && texts[later].textContent === texts[number].textContent &&
				Math.abs(other.top - one.top) < 1);
			if (same >= 0) wrong(`${name}: the axis has ${quoted(texts[number])} twice`);
		});
	}

	// What is not scrolled must fit where it is.
	for (const element of document.querySelectorAll("h1, h2, h3, p, li, td, th, pre")) {
		const isHidden = element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0;
		if (isHidden && !["auto", "scroll"].includes(getComputedStyle(element).overflowX))
			wrong(`${place(element)}: ${quoted(element)} is cut off`);
	}
	document.body.textContent = [...found, ""].join("\n");
});
